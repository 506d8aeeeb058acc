"""Values that other packages pass to each other."""

from icepuffin.ops.model import ObjectRange, StorageConfig, StoredAddresses, StoredRun, StoredShard


def test_a_shard_is_as_long_as_its_blob_its_addresses_and_its_vectors() -> None:
    runs = tuple(StoredRun(ObjectRange("p", 0, length), 1, bytes(32)) for length in (20, 3))
    addresses = StoredAddresses(ObjectRange("a", 0, 400), bytes(32))
    shard = StoredShard(ObjectRange("s", 7, 1_000), runs=runs, addresses=addresses)
    assert (shard.vector_bytes, shard.length) == (23, 1_423)
    assert StoredShard(ObjectRange("s", 7, 1_000)).length == 1_000


def test_settings_of_a_store_are_equal_by_what_they_say() -> None:
    first, again, other = (StorageConfig({"s3.region": region}) for region in ("a", "a", "b"))
    assert first == again
    assert hash(first) == hash(again)
    assert first != other
