"""Edits that each break one clause of the texts this project is made from, and the test that notices.

An edit is found by the name of what it changes and by a piece of its source, wherever that lies.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.repository import modules

PAGES = ("docs/seeds.md", "docs/paper.md")


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one piece of source."""

    clause: str
    """Words of a page of PAGES; of a guard, its kind and what it keeps"""
    changes: str
    """Name of the function, class or constant that has the piece"""
    before: str
    after: str
    test: str
    """Name of the test that notices"""


EDITS = (
    # The Puffin specification
    Edit(
        "magic at the start, and on both sides of the footer",
        "footer", "if head != MAGIC:", "if not head:", "test_a_malformed_file_is_refused_with_its_place",
    ),
    Edit(
        "footer payload, its size and its flags",
        "_footer_before", " or footer_start < len(MAGIC):", ":", "test_a_malformed_file_is_refused_with_its_place",
    ),
    Edit(
        "a compressed footer is read; none is written",
        "_footer_before", "if flags & FLAG_FOOTER_COMPRESSED:", "if False:", "test_a_compressed_footer_is_read",
    ),
    Edit(
        "a compressed footer is read; none is written",
        "footer_bytes", "bytes(4)", "bytes([1, 0, 0, 0])", "test_what_is_written_is_read",
    ),
    Edit(
        "unknown flags are refused, unknown keys and types ignored",
        "_footer_before", "flags & ~FLAG_FOOTER_COMPRESSED", "flags & ~0xFFFFFFFF",
        "test_a_malformed_file_is_refused_with_its_place",
    ),
    Edit(
        "unknown flags are refused, unknown keys and types ignored",
        "_blob_from_json", "if not isinstance(blob, dict):", 'if not isinstance(blob, dict) or "level" in blob:',
        "test_keys_that_later_versions_add_are_ignored",
    ),
    Edit(
        "unknown flags are refused, unknown keys and types ignored",
        "decode_footer", "if not isinstance(document, dict) or", 'if "encryption" in document or',
        "test_keys_that_later_versions_add_are_ignored",
    ),
    Edit(
        "blobs plain or by zstd; LZ4 is read",
        "compress", "write_content_size=True", "write_content_size=False", "test_what_is_written_is_read",
    ),
    Edit(
        "the reference files, byte for byte",
        "encode_footer", 'separators=(",", ":")', 'separators=(", ", ":")',
        "test_the_reference_samples_are_read_and_written_byte_for_byte",
    ),
    Edit(
        "the reference files, byte for byte",
        "_blob_to_json", "list(blob.fields)", "sorted(blob.fields)",
        "test_fields_keep_the_order_that_a_writer_gives_them",
    ),
    Edit(
        "`deletion-vector-v1`",
        "encode", 'struct.pack(">I", zlib.crc32(body))', 'struct.pack("<I", zlib.crc32(body))',
        "test_deletion_vectors_of_iceberg_java_are_read_and_written_byte_for_byte",
    ),
    Edit(
        "`apache-datasketches-theta-v1`, with `ndv`",
        "blob", "str(self.ndv)", 'f"{self.ndv} "',
        "test_the_entry_is_what_the_standard_requires",
    ),
    # The Iceberg table specification
    Edit(
        "snapshots, refs, `replace`, requirements of a commit",
        "derive_snapshot", "Operation.REPLACE", "Operation.APPEND",
        "test_a_version_is_a_replace_snapshot_with_a_tag_and_a_statistics_file",
    ),
    Edit(
        "snapshots, refs, `replace`, requirements of a commit",
        "attempt_commit", "(same_uuid, *requirements)", "requirements",
        "test_a_commit_is_for_the_table_that_was_read_and_no_other_of_its_name",
    ),
    Edit(
        "manifests and their entries, live files",
        "_entries", "entry.status != ManifestEntryStatus.DELETED", "entry.status is not None",
        "test_files_that_a_snapshot_has_deleted_are_not_live_and_its_schema_is_its_own",
    ),
    Edit(
        "position deletes and deletion vectors",
        "deletes_of", "any(delete.kind is DeleteKind.DELETION_VECTOR for delete in by_path)", "False",
        "test_a_deletion_vector_stands_for_all_position_deletes_of_its_file",
    ),
    Edit(
        "equality deletes",
        "_PartitionDeletes", "delete.file.sequence_number - is_equality", "delete.file.sequence_number",
        "test_deletes_apply_by_the_rules_of_scan_planning",
    ),
    Edit(
        "encrypted files",
        "_require_plain", "if entry.data_file.key_metadata:", "if False:", "test_an_encrypted_file_is_refused_by_name",
    ),
    Edit(
        "single-value serialization (appendix D), for sketches",
        "update_ndv", "if chunk.null_count else", "if False else",
        "test_nulls_slices_chunks_and_repeats_do_not_show",
    ),
    Edit(
        "`commit.retry.*` of a table",
        "commit_attempts", "COMMIT_ATTEMPTS if retries is None else 1 + retries", "COMMIT_ATTEMPTS",
        "test_a_refused_commit_is_repeated_as_the_table_says",
    ),
    Edit(
        "vended credentials",
        "ends_of", "return min(", "return max(", "test_the_first_of_several_expiries_counts",
    ),
    Edit(
        "vended credentials",
        "nearest", "return max(", "return min(",
        "test_the_longest_of_nested_prefixes_is_whose_keys_open_a_file",
    ),
    Edit(
        "statistics files, one per snapshot",
        "_overtaken", "if self.is_unanswered:", "if False:",
        "test_after_a_lost_answer_neither_file_is_given_up",
    ),
    Edit(
        "field ids, name mapping, defaults, promotions",
        "_filled_by_partition", "None if constants[field.field_id] else", "None if False else",
        "test_columns_of_a_null_partition_that_a_file_lacks_are_null_whatever_their_default",
    ),
    Edit(
        "field ids, name mapping, defaults, promotions",
        "column_names", "if m.field_id not in constant for name", "for name",
        "test_a_file_without_ids_takes_the_partitions_value_before_a_column_of_the_name",
    ),
    Edit(
        "Avro and ORC data files",
        "open_data_file", 'if file.file_format.upper() != "PARQUET":', "if False:",
        "test_other_formats_damage_and_absence_are_named",
    ),
    Edit(
        "row lineage of format v3",
        "row_versions", "np.full(len(ids), file.file_sequence_number, np.int64)", "np.zeros(len(ids), np.int64)",
        "test_a_row_that_was_moved_keeps_its_version",
    ),
    Edit(
        "row lineage of format v3",
        "_refuted", 'return file.path if differ.any() else ""', 'return ""',
        "test_a_file_that_holds_another_vector_than_its_lineage_says_is_named",
    ),
    # Bodo's text
    Edit(
        "later ones are of columns that have a sketch",
        "choose_statistics", " and not kept", "",
        "test_an_increment_takes_the_columns_that_have_a_sketch_floats_included",
    ),
    Edit(
        "new sketches are united with those there are",
        "sketch_snapshot", "united.add(statistic, extension.sketch)", "pass",
        "test_our_own_sketch_is_extended_where_its_build_id_is_of_the_ancestors_files",
    ),
    Edit(
        "`BODO_ENABLE_THETA_SKETCHES=0` switches them off",
        "is_enabled", '"0", ', "", "test_bodos_switch_turns_it_off",
    ),
    Edit(
        "takes an NDV for fresh by snapshot and sequence number",
        "counted_for", "(blob.snapshot_id, blob.sequence_number)", "(blob.snapshot_id, snapshot.sequence_number or 0)",
        "test_an_ndv_with_the_sequence_number_of_another_snapshot_is_not_fresh_and_is_written_again",
    ),
    Edit(
        "the first sketches are of nine types",
        "CREATED_TYPES", '"string", ', "",
        "test_a_creation_takes_bodos_types",
    ),
    Edit(
        "sketches, vectors and conditions of nested columns",
        "choose_statistics", "names for name in together}.difference(possible)", "names for name in ()}",
        "test_named_columns_override_the_rules_and_may_be_of_any_primitive_type",
    ),
    # The paper
    Edit(
        "centroid blob",
        "decode", 'int(entries["file"].max()) >= files', 'int(entries["file"].max()) > files',
        "test_centroids_that_cannot_be_are_refused",
    ),
    Edit(
        "routing blob",
        "decode", "int(to_shard.max()) >= shards", "int(to_shard.max()) > shards",
        "test_routing_that_cannot_be_is_refused",
    ),
    Edit(
        "shard blob",
        "read_header", "(count and medoid >= count)", "(count and medoid > count)",
        "test_shards_that_cannot_be_are_refused",
    ),
    Edit(
        "community names of the three types, read and written",
        "canonical_type", "COMMUNITY_NAMES.get(blob_type, blob_type)", "blob_type",
        "test_a_version_is_read_by_the_other_names_of_its_blobs",
    ),
    Edit(
        "a shard with over 20 % tombstones is rebuilt",
        "why_rebuilt", "definition.rebuild_ratio * nodes", "definition.rebuild_ratio * (nodes - tombstones)",
        "test_a_shard_is_rebuilt_over_a_fifth_of_tombstones_among_all_nodes",
    ),
    Edit(
        "a shard with over 20 % tombstones is rebuilt",
        "rebuild_ratio", "0.2,", "0.28,", "test_a_shard_is_rebuilt_over_a_fifth_of_tombstones_among_all_nodes",
    ),
    Edit(
        "the codebook is trained on 1 % of the rows",
        "SAMPLE_SHARE", "0.01", "0.1", "test_the_codebook_is_trained_on_one_row_in_a_hundred_within_bounds",
    ),
    Edit(
        "small indexes are searched by the coordinator",
        "choose_runner", "<= in_process_mb * MIB", "<= in_process_mb * 1000 * MIB",
        "test_tasks_search_an_index_of_more_than_the_threshold",
    ),
    Edit(
        "search by tiers, candidates ranked from data files",
        "OVERSAMPLE", "3", "1", "test_fewer_candidates_than_the_gate_measured_with_are_reported",
    ),
    Edit(
        "shards that were fetched are kept on the local disk",
        "_is_own", "status.st_uid == os.geteuid() and ", "", "test_what_somebody_else_owns_is_not_mapped",
    ),
    Edit(
        "time travel costs nothing more",
        "_snapshot_as_of", "entry.timestamp_ms <= moment)", "entry.timestamp_ms < moment)",
        "test_tags_branches_and_times_mean_their_snapshots",
    ),
    Edit(
        "threshold queries by balls of files",
        "reachable", "* (1 + _ROUNDING) + _TINY", "* 0.97", "test_a_ball_never_hides_a_row",
    ),
    Edit(
        "summary keys, properties of blobs",
        "_write_file", 'of_routing[f"ann.shard_{shard.shard_id}.tombstone_ratio"] = tombstone_ratio(shard)', "pass",
        "test_the_properties_of_blobs_are_those_of_the_text",
    ),
    Edit(
        "the summary names the file (`statistics-file`)",
        "derive_snapshot", "{STATISTICS_FILE_KEY: binding.puffin_path}", "{}",
        "test_a_version_is_a_replace_snapshot_with_a_tag_and_a_statistics_file",
    ),
    Edit(
        "orphan cleaners keep what the summary names",
        "version_updates", ", SetStatisticsUpdate(statistics=file)", "",
        "test_a_version_is_a_replace_snapshot_with_a_tag_and_a_statistics_file",
    ),
    Edit(
        "the commit is a `replace` snapshot on `main`",
        "derive_snapshot", "parent_snapshot_id=None", "parent_snapshot_id=base.snapshot_id",
        "test_a_version_is_a_replace_snapshot_with_a_tag_and_a_statistics_file",
    ),
    Edit(
        "refs expire by age",
        "tag_ref", "max_ref_age_ms=max_ref_age_ms", "max_ref_age_ms=None",
        "test_tags_that_are_to_last_carry_their_own_reference_age",
    ),
    Edit(
        "two refreshers at once",
        "_requirements", "((binding.tag, binding.expected_ref), *packs)", "packs",
        "test_the_commit_itself_asserts_where_the_tag_was",
    ),
    Edit(
        "an index version is too costly to copy",
        "_requirements", "((binding.tag, binding.expected_ref), *packs)", "((binding.tag, binding.expected_ref),)",
        "test_the_commit_itself_asserts_the_tags_of_its_packs",
    ),
    Edit(
        "a catalog drops refs, as Nessie does",
        "_verify_committed", "if current_id in (snapshot_id, *", "if current_id in (None, *",
        "test_a_catalog_that_makes_the_index_snapshot_current_is_recognised",
    ),
    Edit(
        "a file's name is used again",
        "same_files", "if not later and not unlike", "if not unlike",
        "test_rows_of_the_file_that_is_there_now_are_found_before_a_refresh_and_after_it",
    ),
    Edit(
        "rows are deleted from a file that stays",
        "find_changes", "if fingerprint(file) != table_then[covered[path]].delete_fingerprint", "if False",
        "test_position_deletes_become_tombstones_and_nothing_is_rewritten",
    ),
    Edit(
        "rows of removed files are tombstones",
        "find_changes", "emptied_slots=tuple(sorted(emptied.values()))", "emptied_slots=()",
        "test_rows_of_a_deleted_file_become_tombstones",
    ),
    Edit(
        "| compaction |",
        "outcome", "return How.REMAPPED", "return How.REBUILT",
        "test_a_table_written_anew_with_its_old_rows_costs_no_graph_work",
    ),
    Edit(
        "a graph gets worse",
        "require_rows", "if fault := fault_of(result, plan.definition.target_recall):", 'if fault := "":',
        "test_a_version_whose_nodes_are_not_the_rows_is_not_published",
    ),
    Edit(
        "a blob is damaged or hostile",
        "_compare", "if checksum != entry.checksum:", "if False:",
        "test_a_wrong_checksum_is_an_error",
    ),
    Edit(
        "shards are independent, which costs recall",
        "recall_of_nodes", "np.where(answers == itself, np.inf, distances)", "distances",
        "test_the_row_that_is_searched_for_is_no_hit_wherever_it_stands_among_the_answers",
    ),
    Edit(
        "recall at k = 10 and 100, and a curve of each",
        "measure_recall", "if len(nodes) <= WIDE_K:", "if True:",
        "test_recall_is_of_the_nearest_ten_and_hundred_live_rows",
    ),
    Edit(
        "recall of each version, after deletes as well",
        "_chosen", "if shard.recall.changed]", "if False]",
        "test_where_the_rows_that_were_found_are_deleted_the_recall_of_the_version_falls",
    ),
    Edit(
        "recall of live queries, with its interval",
        "recall", "confidence_interval(mean or 0.0, sample.queries)", "(mean or 0.0, mean or 1.0)",
        "test_the_recall_is_the_mean_of_the_sample",
    ),
    Edit(
        "merge of the shards' lists by a tree of losers",
        "merge_sorted", "for part in parts]", "for part in parts[:1]]",
        "test_the_tree_merges_as_sorting_does",
    ),
    Edit(
        "a graph-less index, `USING centroid`",
        "enclose_files", "if file.path in added]", "]",
        "test_a_refresh_reads_the_files_with_other_rows_alone",
    ),
    Edit(
        "its top-k searches, exact and certified",
        "certify", ">= k, 0.0, np.inf)", ">= 0, 0.0, np.inf)",
        "test_the_answer_is_that_of_an_exact_scan",
    ),
    Edit(
        "their proof: bounds, and the margin of each file",
        "proof", "margins = np.minimum(margins", "margins = np.maximum(margins",
        "test_the_answer_is_that_of_an_exact_scan",
    ),
    Edit(
        "for l2 and cosine; not for the inner product",
        "read_balls", "if target.metric is Metric.INNER_PRODUCT:", "if False:",
        "test_inner_product_prunes_nothing_and_says_why",
    ),
    Edit(
        "scans of data files by tasks, where they read much",
        "_runner_for", "return self._choice.runner if", "return None if",
        "test_tasks_read_the_files_in_reach_and_no_others",
    ),
    Edit(
        "conditions evaluated by tasks, where they read much",
        "matches", "runner = self._runner_for(files, _VALUE_BYTES * len(predicate.columns))", "runner = None",
        "test_a_condition_on_many_rows_is_evaluated_by_tasks",
    ),
    Edit(
        "vectors as bytes: f32, f16, i8, u8, bits by Hamming distance",
        "_DTYPES", '"u8": np.dtype("u1")', '"u8": np.dtype("i1")',
        "test_bytes_are_their_elements_wherever_the_column_is_cut",
    ),
    Edit(
        "a reader keeps the freshness tail in memory",
        "_read", "finalize(kept, TAIL_MEMORY.release, self._bytes)", "pass",
        "test_readers_share_one_budget_and_give_it_back",
    ),
    Edit(
        "the name `coordinator_ann_probe_threshold_mb`",
        "_NAME_OF_THE_PAPER", "coordinator_ann_probe_threshold_mb", "coordinator_probe_threshold_mb",
        "test_the_size_of_a_probe_here_has_the_name_of_the_paper_too",
    ),
)  # fmt: skip


def broken_sources(edit: Edit) -> list[tuple[Path, str]]:
    """(module, its source with the edit) of each place that the edit fits: it should be one."""
    broken = []
    for path, source in _sources().items():
        if edit.before not in source:
            continue
        lines = source.splitlines(keepends=True)
        for first, last in _pieces(source).get(edit.changes, ()):
            piece = "".join(lines[first - 1 : last])
            if piece.count(edit.before) == 1:
                changed = piece.replace(edit.before, edit.after)
                broken.append((path, "".join([*lines[: first - 1], changed, *lines[last:]])))
    return broken


@cache
def _sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in modules()}


@cache
def _pieces(source: str) -> dict[str, list[tuple[int, int]]]:
    """(first line, last line) of all in a module that has a name, by that."""
    pieces: dict[str, list[tuple[int, int]]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            for name in _names(node):
                pieces.setdefault(name, []).append((node.lineno, node.end_lineno or node.lineno))
    return pieces


def _names(node: ast.stmt) -> list[str]:
    """Names that a statement gives to what it contains."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
