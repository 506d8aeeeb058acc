"""Edits that each take away a guard, and the test that notices: by the kinds of faults that tests have missed.

A bound is a limit of sizes, rows or positions. An owner is who may read or delete what. A clock is a moment that counts
among several. A twin is the same rule for the other kind of file. A message is an error that says what to do.
"""

from tests.clauses.edits import EDITS, Edit

GUARDS = (
    # Sizes, rows and positions: of Puffin files
    Edit(
        "bound: a blob ends before the footer", "_check_locations",
        " or blob.offset + blob.length > blob_area_end:", ":", "test_a_malformed_file_is_refused_with_its_place",
    ),
    Edit(
        "bound: memory that the values of a footer take", "_require_room",
        "if size > room:", "if size > 2 * room:",
        "test_the_values_of_a_footer_take_as_much_memory_as_its_length_allows",
    ),
    Edit(
        "bound: the length of a footer", "_footer_before",
        "if payload_size > MAX_FOOTER:", "if False:", "test_a_footer_is_read_up_to_its_limit_plain_and_expanded",
    ),
    Edit(
        "bound: what a frame expands to", "_check_declared",
        "if size > max_bytes:", "if False:", "test_a_frame_holds_as_much_as_the_caller_allows_and_no_byte_more",
    ),
    Edit(
        "twin: frames of LZ4 declare no more than they hold", "_decompress_lz4",
        'len(data) * _MAX_RATIO["lz4"]', "size", "test_frames_that_cannot_hold_what_they_declare_take_no_memory",
    ),
    Edit(
        "bound: a shard lies within its pack", "stored_shards",
        "part.offset + part.length > sizes", "part.offset > sizes",
        "test_a_shard_that_does_not_lie_within_its_pack_is_refused",
    ),
    Edit(
        "bound: packs of included values", "included_of",
        "entry.pack >= len(sizes)", "entry.pack > len(sizes)",
        "test_values_beyond_the_files_and_packs_of_a_version_are_not_read",
    ),
    Edit(
        "twin: included values lie within their pack", "included_of",
        "entry.offset + entry.length > sizes", "entry.offset > sizes",
        "test_values_beyond_the_files_and_packs_of_a_version_are_not_read",
    ),
    Edit(
        "bound: included values of no two files are the same bytes", "included_of",
        " or any(length > sizes[pack] for pack, length in column.bytes_by_pack.items())", "",
        "test_values_beyond_the_files_and_packs_of_a_version_are_not_read",
    ),
    Edit(
        "bound: files of values for conditions", "read_attribute_blob",
        "entry.slot >= len(files)", "entry.slot > len(files)",
        "test_values_beyond_the_files_and_packs_of_a_version_are_not_read",
    ),
    Edit(
        "twin: files of included values", "included_of",
        "entry.slot >= len(routing.files)", "entry.slot > len(routing.files)",
        "test_values_beyond_the_files_and_packs_of_a_version_are_not_read",
    ),
    # of rows
    Edit(
        "bound: rows that cells name", "live_numbers",
        "(positions >= counts[numbers[live]])", "(positions > counts[numbers[live]])",
        "test_cells_name_no_file_and_no_row_that_there_is_not",
    ),
    Edit(
        "twin: rows of the nodes of shards", "_live_nodes",
        "shard.row_positions < self", "shard.row_positions <= self",
        "test_a_node_behind_the_end_of_its_file_is_not_live",
    ),
    Edit(
        "bound: files that a shard names", "read",
        "int(shard.file_slots.max()) >= len", "int(shard.file_slots.max()) > len",
        "test_a_shard_that_the_routing_blob_does_not_describe_is_refused",
    ),
    Edit(
        "bound: positions of a deletion vector", "_deletion_vector",
        "min(MAX_POSITIONS, file.record_count)", "MAX_POSITIONS",
        "test_a_deletion_vector_names_no_more_rows_than_its_file_has",
    ),
    Edit(
        "bound: rows of staged blocks", "read_in_order",
        "if start != total:", "if start > total:", "test_a_block_that_lost_rows_is_refused",
    ),
    Edit(
        "twin: bytes of staged moves", "read_moves",
        "if len(raw) != where.length:", "if False:", "test_moves_that_were_cut_off_are_refused",
    ),
    Edit(
        "bound: rows of a delta shard", "place",
        "filled.get(target, 0) + arriving > largest", "arriving > largest",
        "test_a_delta_is_no_larger_than_a_shard_may_be",
    ),
    Edit(
        "bound: k is at least 1", "require_at_least_one",
        "if value < 1:", "if value < 0:", "test_a_number_of_rows_that_is_none_is_refused",
    ),
    Edit(
        "bound: limits of a parameter", "check",
        "self.low <= value <= self.high", "self.low <= value", "test_a_parameter_takes_its_limits_and_nothing_beyond",
    ),
    Edit(
        "bound: distinct values are no more than rows", "ndv_of",
        "min(most, int(estimate(sketch.theta, count)))", "int(estimate(sketch.theta, count))",
        "test_there_are_no_more_distinct_values_than_rows",
    ),
    Edit(
        "bound: rows of deltas that are live", "live_rows",
        " * (1 - self.tombstones)", "", "test_rows_of_deltas_count_as_live_but_for_the_largest_share_of_tombstones",
    ),
    Edit(
        "bound: an NDV is none below 0", "ndv_property",
        "ndv if ndv >= 0 else None", "ndv", "test_an_ndv_is_a_whole_number_from_0_on",
    ),
    Edit(
        "bound: a hash is below theta", "__post_init__",
        "int(self.hashes[-1]) >= self.theta", "int(self.hashes[-1]) > self.theta",
        "test_a_hash_is_below_theta_and_the_largest_theta_is_that_of_a_sketch_that_dropped_none",
    ),
    Edit(
        "twin: images of kept sketches fill what is listed", "_entry",
        "!= raw:", "> raw:", "test_images_fill_what_a_directory_lists_and_are_of_its_columns",
    ),
    # of memory, disk, files
    Edit(
        "bound: the directory of kept sketches", "within_budget",
        " and listed + entry <= MAX_DIRECTORY_BYTES:", ":",
        "test_within_the_budget_the_files_that_take_longest_to_read_are_kept",
    ),
    Edit(
        "bound: shards of a build", "choose_shard_count",
        "min(MAX_SHARDS, shards)", "shards", "test_no_layout_has_more_shards_than_are_written",
    ),
    Edit(
        "bound: shards that an executor keeps", "_shard",
        "while len(self._shards) > 1 and", "while False and",
        "test_a_worker_keeps_the_shards_that_were_used_last_within_the_memory_of_the_cache",
    ),
    Edit(
        "bound: numbers of a record of tuning", "_point",
        "min(point.k, point.search_list, point.oversample)", "min(point.k, point.search_list)",
        "test_a_record_with_numbers_that_cannot_be_is_none",
    ),
    Edit(
        "bound: a shard larger than the disk cache", "_make_room",
        "> self._budget >= size", "> self._budget", "test_a_shard_over_the_budget_leaves_the_others_on_the_disk",
    ),
    Edit(
        "bound: decoders side by side", "reserve",
        "self._reserved + size <= self._budget", "True",
        "test_decoders_wait_for_each_other_where_they_take_more_than_the_budget",
    ),
    Edit(
        "bound: a client that sends nothing", "server",
        "timeout = _REQUEST_SECONDS", "timeout = None", "test_a_client_that_sends_nothing_is_left_after_a_while",
    ),
    # Who may read and delete what
    Edit(
        "owner: a folder that others can write to", "opened",
        "if status.st_mode & _OTHERS_WRITE and any(folder.iterdir()):", "if False:",
        "test_files_in_a_folder_that_others_could_write_to_are_not_trusted",
    ),
    Edit(
        "owner: locks that others can hold", "opened",
        "if not _is_own(locks.lstat()):", "if False:", "test_locks_that_others_could_hold_leave_shards_in_the_store",
    ),
    Edit(
        "twin: a folder of others is neither read nor written", "draft",
        "if not _is_own(path.parent.lstat()):", "if False:",
        "test_nothing_is_written_into_a_folder_of_one_owner_that_others_could_write_to",
    ),
    Edit(
        "owner: rows that a reader of before has decoded", "kept_for",
        " if _is_same_user(file.path, self._storage, storage) else None", "",
        "test_rows_are_handed_to_a_reader_of_the_same_user_that_reads_their_file_alike",
    ),
    Edit(
        "owner: a lease is of one user of a table", "lease_of",
        "os.getpid(), vended.who", 'os.getpid(), ""', "test_a_process_and_a_user_of_a_table_have_a_lease_of_their_own",
    ),
    Edit(
        "owner: vended keys replace all of their kind", "combined",
        "if kind_of_key(key) not in kinds}", "}", "test_vended_keys_replace_all_of_their_kind",
    ),
    Edit(
        "owner: files that only begin as ours", "_is_ours",
        'name.removesuffix(SUFFIX).endswith(".puffin")', "True",
        "test_names_that_only_begin_or_end_as_ours_are_not_ours",
    ),
    Edit(
        "owner: packs that the owner has tagged", "unnamed_packs",
        " if holder_id not in foreign}", "}", "test_packs_go_with_the_last_version_that_names_them",
    ),
    Edit(
        "owner: versions that the owner has tagged", "plan_retention",
        "if reason and not foreign and", "if reason and", "test_a_version_that_somebody_tagged_stays",
    ),
    Edit(
        "owner: a version that a branch of the owner's comes from", "plan_retention",
        " and version.index_snapshot_id not in history:", ":",
        "test_a_version_that_a_branch_of_the_owners_comes_from_stays",
    ),
    Edit(
        "owner: a version that the index tag came back to", "carry_out_retention",
        "(frozenset() if plan.drops_tag else {tag})", "frozenset()",
        "test_a_version_that_the_index_tag_came_back_to_is_left_in_place",
    ),
    Edit(
        "owner: a tag on the version of another index", "own_tag_target",
        " and tag in dict(_possible_tags(target)):", ":", "test_a_tag_on_another_indexs_version_is_its_owners",
    ),
    Edit(
        "owner: a snapshot with all of our keys and a parent", "_judged",
        "(KIND_KEY in properties or snapshot.parent_snapshot_id != base):", "snapshot.parent_snapshot_id != base:",
        "test_the_rows_of_a_rewrite_that_copied_all_of_a_versions_summary_are_found",
    ),
    Edit(
        "owner: a snapshot with a parent of its own", "_judged",
        "KIND_KEY in properties or snapshot.parent_snapshot_id != base):", "KIND_KEY in properties):",
        "test_a_snapshot_that_is_ours_in_all_but_one_respect_is_the_owners",
    ),
    Edit(
        "owner: masks restrict a table as filters do", "read_restrictions_of",
        "row_filter is None and not masked else", "row_filter is None else", "test_the_refusal_says_what_is_restricted",
    ),
    Edit(
        "owner: rows that the catalog hides from a search without a condition", "narrowed",
        "return self.row_filter", "return None",
        "test_readers_of_one_process_share_nothing_that_one_of_them_may_not_see",
    ),
    Edit(
        "owner: rows that the catalog hides from a search with a condition", "narrowed",
        "return And(self.row_filter, parse", "return (parse",
        "test_readers_of_one_process_share_nothing_that_one_of_them_may_not_see",
    ),
    Edit(
        "owner: what hidden rows have a part in", "allowed_profile",
        "if self.row_filter is None:", "if True:", "test_hidden_rows_tell_nothing",
    ),
    Edit(
        "owner: statistics of others that we cannot read", "_is_damaged",
        "return bool(listed) and", "return",
        "test_a_file_that_cannot_be_read_is_ours_only_where_all_that_it_lists_is",
    ),
    Edit(
        "owner: runs of another container", "has_ended",
        "if self.namespace != here.namespace:", "if False:",
        "test_a_run_that_lives_or_that_nobody_here_can_see_is_left_alone",
    ),
    Edit(
        "owner: reports of others", "_reports",
        "_NAME.fullmatch(below[1])", "_NAME.search(below[1])", "test_objects_of_others_are_neither_read_nor_deleted",
    ),
    Edit(
        "owner: users that a catalog tells apart by a header", "_IDENTITY",
        '"header.", ', "", "test_users_that_a_catalog_tells_apart_share_no_keys",
    ),
    Edit(
        "owner: users whose keys sign their requests to a catalog", "_identity",
        '.lower() == "true"', '.lower() == "yes"', "test_users_that_a_catalog_tells_apart_share_no_keys",
    ),
    Edit(
        "owner: deletes that were resolved for another user", "_file_key",
        "None if isinstance(storage, LocalStorage) else storage", "None",
        "test_what_was_resolved_is_shared_by_users_of_local_files_alone",
    ),
    Edit(
        "owner: packs that a hidden version may name", "expire_packs",
        "        require_all_snapshots(table)\n", "",
        "test_packs_stay_where_a_catalog_hides_snapshots_that_may_name_them",
    ),
    Edit(
        "owner: statistics of a writer whose name only begins as ours", "_is_created_by_icepuffin",
        '[0]} ")', '[0]}")', "test_statistics_are_swept_that_say_that_icepuffin_made_them_and_no_others",
    ),
    Edit(
        "owner: keys that are refused for reports of recall", "__init__",
        "self._config = replace(storage, vended=vended)", "self._config = storage",
        "test_keys_that_a_store_refuses_for_reports_are_not_refused_for_the_table",
    ),
    # The moment that counts among several
    Edit(
        "clock: the last wait ends when the table's time does", "commit_attempts",
        "min(_pause(properties, sent - 1), remaining)", "_pause(properties, sent - 1)",
        "test_the_passes_of_a_loop_are_one_more_than_its_commits",
    ),
    Edit(
        "clock: no wait is longer than ten minutes", "_pause",
        "least * doubled, _LONGEST_WAIT)", "least * doubled)", "test_a_wait_is_doubled_each_time_up_to_a_limit",
    ),
    Edit(
        "clock: a file is as old as the newest of its deletes", "file_key",
        "values_of(file.deletes, _sequence_number)", "values_of(file.deletes, _sequence_number)[:1]",
        "test_a_file_is_as_old_as_the_newest_of_its_deletes",
    ),
    Edit(
        "clock: reports that fail are tried no sooner than their interval", "finished",
        "max(self._interval, _LONGEST_WAIT)", "_LONGEST_WAIT",
        "test_a_folder_that_cannot_be_written_to_is_tried_ever_more_rarely",
    ),
    Edit(
        "clock: a catalog that is away for less than the table may lag", "_catalog_away",
        "max(_AWAY_MINUTES, spec.settings.max_freshness_minutes)", "_AWAY_MINUTES",
        "test_a_catalog_that_is_away_is_warned_of_once_when_the_table_would_be_late",
    ),
    Edit(
        "clock: since when a catalog is away", "_catalog_away",
        "cursor.away_since or now", "now",
        "test_a_catalog_that_is_away_is_warned_of_once_when_the_table_would_be_late",
    ),
    Edit(
        "clock: a snapshot comes after the table's last change", "_time_after",
        "max(int(datetime", "min(int(datetime",
        "test_a_version_and_its_pack_come_after_the_last_change_of_the_table",
    ),
    Edit(
        "clock: keys of a few minutes are renewed before they end", "_adopt",
        "min(_EARLY_MS, remaining_ms / 4)", "_EARLY_MS",
        "test_all_keys_are_renewed_five_minutes_or_a_quarter_before_the_first_expires",
    ),
    Edit(
        "clock: keys that came another way last longer", "offer",
        "if ends_of(vended.grants) > self._ends:", "if True:",
        "test_keys_that_came_another_way_are_taken_where_the_first_of_them_lasts_longer",
    ),
    Edit(
        "clock: a store's refusal is final for a while", "has_other_than",
        "and _now() >= self._final_until:", "and True:",
        "test_what_a_store_refuses_is_replaced_once_and_then_its_refusal_is_final_for_half_a_minute",
    ),
    Edit(
        "clock: garbage is old by the millisecond", "collect_garbage",
        "file.modified_ms > cut_off_ms", "file.modified_ms >= cut_off_ms",
        "test_files_are_swept_once_they_are_older_than_the_grace_period",
    ),
    Edit(
        "clock: what is published while files are listed", "collect_garbage",
        "reload_table(table)  #", "#", "test_what_is_published_while_files_are_listed_stays",
    ),
    Edit(
        "clock: the oldest of several late snapshots", "index_lag",
        "lineage[-behind].timestamp_ms", "lineage[-1].timestamp_ms",
        "test_the_oldest_late_snapshot_since_the_newest_version_counts",
    ),
    Edit(
        "clock: versions are in the order of their commits", "versions_in",
        "(version.sequence_number, version.timestamp_ms)", "(version.timestamp_ms, version.sequence_number)",
        "test_versions_are_in_the_order_of_their_commits_whatever_the_clocks_of_their_machines_were",
    ),
    Edit(
        "clock: estimates learn from the last runs", "predicted_seconds",
        "[-EARLIER_VERSIONS:]", "[:EARLIER_VERSIONS]",
        "test_seconds_are_corrected_by_the_last_five_runs_of_the_same_kind",
    ),
    Edit(
        "clock: an answer of a reader whose last check is long ago", "_answer",
        " and age <= _LATE * self._interval:", ":",
        "test_an_answer_that_was_not_checked_for_three_intervals_says_so",
    ),
    Edit(
        "clock: a poll ends before a catalog's usual time for an answer", "request_limits",
        "min(ANSWER_SECONDS, _LIMIT.get())", "ANSWER_SECONDS",
        "test_within_a_shorter_limit_a_catalog_must_connect_and_answer_in_that",
    ),
    Edit(
        "clock: snapshots since a time, which is UTC", "convert",
        "time.replace(tzinfo=UTC)", "time.astimezone()",
        "test_the_time_since_which_snapshots_are_listed_is_utc_whatever_the_zone_of_the_machine",
    ),
    Edit(
        "clock: two times of a schedule in an hour", "nightly",
        "%H:%M}", "%H}", "test_one_night_requests_one_run_and_the_next_night_another",
    ),
    Edit(
        "clock: of the sketches of a snapshot the last ones serve first", "open_earlier_sketches",
        "-v.sequence_number", "v.sequence_number",
        "test_of_the_versions_of_a_snapshot_the_one_that_was_made_last_serves_first",
    ),
    # The same rule for the other kind of file
    Edit(
        "twin: sketches are swept as versions are", "OUR_FILES",
        '("ann-", "theta-")', '("ann-",)', "test_files_are_swept_once_they_are_older_than_the_grace_period",
    ),
    Edit(
        "twin: statistics files of a dry run expire as lists do", "collect_garbage",
        "for entry in table.metadata.statistics if entry.snapshot_id not in expiring",
        "for entry in table.metadata.statistics",
        "test_what_counts_as_expiring_is_what_a_dry_run_would_sweep",
    ),
    Edit(
        "twin: a file that came again under its name, for sketches", "_stored",
        "key.added <= one.images.sequence_number and ", "", "test_a_file_that_came_again_under_its_name_is_another",
    ),
    Edit(
        "twin: and in format v1", "_stored",
        " and key.added_by in (NO_SNAPSHOT, one.entry.added_by)", "",
        "test_a_file_that_came_again_under_its_name_is_another",
    ),
    Edit(
        "twin: holders of packs have no parent, as versions have none", "_require_kept_packs",
        "if snapshots_by_id(table.metadata)[pack.holder_id].parent_snapshot_id is not None:", "if False:",
        "test_a_catalog_that_gives_a_snapshot_a_parent_is_recognised",
    ),
    Edit(
        "twin: statistics that a killed process was writing", "_is_ours",
        " or _CUT_OFF_STATISTICS.fullmatch(name):", ":", "test_what_a_killed_process_was_writing_is_swept",
    ),
    Edit(
        "twin: what PyIceberg writes appears whole or not at all", "__exit__",
        "if error is not None and not self.closed:", "if False:",
        "test_a_file_whose_writer_fails_does_not_appear",
    ),
    Edit(
        "twin: estimates of sketches learn from the last runs", "_predicted",
        "[-EARLIER_VERSIONS:]", "[:EARLIER_VERSIONS]",
        "test_seconds_are_corrected_by_the_last_five_runs_of_the_same_runner",
    ),
    Edit(
        "twin: sketches of an older snapshot have a tag that ages", "write_version",
        "LASTING_MS if tag == SKETCHES_TAG else SIDE_TAG_AGE_MS", "LASTING_MS",
        "test_sketches_of_an_older_snapshot_have_a_tag_of_their_own_that_ages",
    ),
    # What to do
    Edit(
        "message: packs that cannot be tagged", "keep_packs",
        " in {attempt.number} attempts; try again", "",
        "test_work_that_others_are_always_ahead_of_ends_with_what_to_do",
    ),
    Edit(
        "message: versions and packs that cannot be expired", "_remove_snapshots",
        " in {attempt.number} attempts; try again", "",
        "test_work_that_others_are_always_ahead_of_ends_with_what_to_do",
    ),
    Edit(
        "message: keys that have expired", "_expired",
        "Check that the catalog answers from ", "From ",
        "test_a_catalog_that_refuses_is_requested_twice_a_minute_and_named_once_the_keys_have_expired",
    ),
    Edit(
        "message: a tag that was moved meanwhile", "_change_tag",
        "; look again before you decide", "", "test_a_move_of_the_tag_asserts_where_it_was_too",
    ),
    Edit(
        "message: a publication whose answer was lost", "_unknown_outcome",
        "; run it again when the catalog ", "; ", "test_while_the_outcome_is_unknown_nothing_is_deleted",
    ),
    Edit(
        "message: a clock that is behind", "require_clock",
        "Set the clock, or", "Or", "test_a_change_that_would_set_the_time_back_is_refused",
    ),
    Edit(
        "message: a ref of the owner's in the way of an index", "own_tag_target",
        "give the index another name", "", "test_a_ref_of_the_owners_is_not_taken_for_ours",
    ),
)  # fmt: skip

ALL_EDITS = (*EDITS, *GUARDS)
