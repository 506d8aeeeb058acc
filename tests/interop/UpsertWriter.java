// A table as Flink and CDC tools write it: files by Iceberg's own writers, row deltas that commit them together.
// Compiled in Spark's driver by its Janino: hence neither lambdas nor generic classes without a name.
// Values come as JSON by field id, as Iceberg's metadata has default values. File names count, so that a seed repeats them.
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.iceberg.*;
import org.apache.iceberg.data.*;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.data.parquet.GenericParquetReaders;
import org.apache.iceberg.deletes.*;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.io.*;
import org.apache.iceberg.parquet.Parquet;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.org.apache.parquet.schema.MessageType;
import org.apache.iceberg.types.TypeUtil;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.JsonUtil;

public class UpsertWriter {
  private final Table table;
  private int files = 0;

  public UpsertWriter(Table table) {
    this.table = table;
  }

  /** Commits data files and equality delete files: a list of {spec, partition, columns, keys, rows, row_group}. */
  public void commit(String json) throws IOException {
    table.refresh();
    List<DataFile> rows = new ArrayList<DataFile>();
    List<DeleteFile> deletes = new ArrayList<DeleteFile>();
    for (JsonNode file : JsonUtil.mapper().readTree(json)) {
      PartitionSpec spec = (PartitionSpec) table.specs().get(file.get("spec").asInt());
      StructLike partition = (StructLike) SingleValueParser.fromJson(spec.partitionType(), file.get("partition"));
      Schema schema = TypeUtil.select(table.schema(), JsonUtil.getIntegerSet("columns", file));
      List<Record> records = new ArrayList<Record>();
      for (JsonNode row : file.get("rows")) {
        records.add(record(schema, row));
      }
      int[] keys = JsonUtil.getIntArrayOrNull("keys", file);
      Map<String, String> config = new HashMap<String, String>();
      if (file.get("small_groups").asBoolean()) {
        for (String prefix : new String[] {"write.parquet.", "write.delete.parquet."}) {
          config.put(prefix + "row-group-size-bytes", "100");
          config.put(prefix + "row-group-check-min-record-count", "1");
        }
      }
      GenericFileWriterFactory.Builder builder = writers().dataSchema(schema).writerProperties(config);
      if (keys == null) {
        rows.add(write(builder.build(), spec, partition, records));
      } else {
        GenericFileWriterFactory factory = builder.equalityFieldIds(keys).equalityDeleteRowSchema(schema).build();
        EqualityDeleteWriter<Record> writer = factory.newEqualityDeleteWriter(newFile("keys"), spec, partition);
        writer.write(records);
        writer.close();
        deletes.add(writer.toDeleteFile());
      }
    }
    if (deletes.isEmpty()) {
      AppendFiles append = table.newAppend();
      for (DataFile file : rows) {
        append.appendFile(file);
      }
      append.commit();
    } else {
      RowDelta delta = table.newRowDelta();
      for (DataFile file : rows) {
        delta.addRows(file);
      }
      for (DeleteFile file : deletes) {
        delta.addDeletes(file);
      }
      delta.commit();
    }
  }

  /** A row as writers of generic records take it: a date is no number of days. */
  private static Record record(Schema schema, JsonNode row) {
    Record record = (Record) SingleValueParser.fromJson(schema.asStruct(), row);
    for (Object column : schema.columns()) {
      Types.NestedField field = (Types.NestedField) column;
      Object value = record.getField(field.name());
      record.setField(field.name(), IdentityPartitionConverters.convertConstant(field.type(), value));
    }
    return record;
  }

  /** Deletes live rows whose uid divided by `divisor` leaves `rest`: by deletion vectors, before v3 by delete files. */
  public void deletePositions(long divisor, long rest, boolean perFile) throws IOException {
    table.refresh();
    RowDelta delta = table.newRowDelta().validateFromSnapshot(table.currentSnapshot().snapshotId());
    Map<String, List<FileScanTask>> groups = new LinkedHashMap<String, List<FileScanTask>>();
    for (FileScanTask task : tasks(table.newScan())) {
      String group = perFile ? task.file().location() : task.spec().specId() + " " + task.file().partition();
      if (!groups.containsKey(group)) {
        groups.put(group, new ArrayList<FileScanTask>());
      }
      ((List<FileScanTask>) groups.get(group)).add(task);
    }
    boolean vectors = ((HasTableOperations) table).operations().current().formatVersion() >= 3;
    for (List<FileScanTask> group : groups.values()) {
      if (vectors) {
        addVectors(delta, group, divisor, rest);
      } else {
        addPositions(delta, group, divisor, rest);
      }
    }
    delta.commit();
  }

  private void addPositions(RowDelta delta, List<FileScanTask> group, long divisor, long rest) throws IOException {
    FileScanTask first = (FileScanTask) group.get(0);
    PositionDeleteWriter<Record> writer =
        writers().build().newPositionDeleteWriter(newFile("positions"), first.spec(), first.file().partition());
    long count = 0;
    for (FileScanTask task : group) {
      for (Long position : positions(task, divisor, rest)) {
        PositionDelete<Record> delete = PositionDelete.create();
        writer.write(delete.set(task.file().location(), position.longValue()));
        count += 1;
      }
    }
    writer.close();
    if (count > 0) {
      delta.addDeletes(writer.toDeleteFile());
    }
  }

  private void addVectors(RowDelta delta, List<FileScanTask> group, long divisor, long rest) throws IOException {
    final Map<String, FileScanTask> tasks = new HashMap<String, FileScanTask>();
    for (FileScanTask task : group) {
      tasks.put(task.file().location(), task);
    }
    Supplier newVectors = new Supplier() {
      public Object get() {
        return newOutput("vectors", "puffin");
      }
    };
    Function before = new Function() {
      public Object apply(Object path) {
        return deletedBefore((FileScanTask) tasks.get(path));
      }
    };
    DVFileWriter writer = new BaseDVFileWriter(newVectors, before);
    for (FileScanTask task : group) {
      for (Long position : positions(task, divisor, rest)) {
        writer.delete(task.file().location(), position.longValue(), task.spec(), task.file().partition());
      }
    }
    writer.close();
    for (DeleteFile file : writer.result().deleteFiles()) {
      delta.addDeletes(file);
    }
    for (DeleteFile file : writer.result().rewrittenDeleteFiles()) {
      delta.removeDeletes(file);
    }
  }

  /** What a new deletion vector of a file must delete, too. */
  private PositionDeleteIndex deletedBefore(FileScanTask task) {
    List<DeleteFile> deletes = new ArrayList<DeleteFile>();
    for (DeleteFile file : task.deletes()) {
      if (file.content() == FileContent.POSITION_DELETES) {
        deletes.add(file);
      }
    }
    if (deletes.isEmpty()) {
      return null;
    }
    Function open = new Function() {
      public Object apply(Object file) {
        return table.io().newInputFile((DeleteFile) file);
      }
    };
    return new BaseDeleteLoader(open).loadPositionDeletes(deletes, task.file().location());
  }

  private List<Long> positions(FileScanTask task, long divisor, long rest) throws IOException {
    List<Long> positions = new ArrayList<Long>();
    for (Record row : live(task, new Schema(table.schema().findField("uid"), MetadataColumns.ROW_POSITION))) {
      if (((Long) row.get(0)).longValue() % divisor == rest) {
        positions.add((Long) row.get(1));
      }
    }
    return positions;
  }

  /**
   * Rewrites the live rows of some files in the table's newest partition spec. `sequenceOfNow`: the new files are as
   * old as the head. `dropDeletes`: where all files are rewritten, their delete files are removed.
   */
  public void compact(long seed, double share, boolean sequenceOfNow, boolean dropDeletes) throws IOException {
    table.refresh();
    Random random = new Random(seed);
    Snapshot head = table.currentSnapshot();
    RewriteFiles rewrite = table.newRewrite().validateFromSnapshot(head.snapshotId());
    if (sequenceOfNow) {
      rewrite.dataSequenceNumber(head.sequenceNumber());
    }
    PartitionKey key = new PartitionKey(table.spec(), table.schema());
    InternalRecordWrapper wrapper = new InternalRecordWrapper(table.schema().asStruct());
    Map<PartitionKey, List<Record>> partitions = new LinkedHashMap<PartitionKey, List<Record>>();
    Map<String, DeleteFile> deletes = new TreeMap<String, DeleteFile>();
    List<FileScanTask> tasks = tasks(table.newScan());
    int rewritten = 0;
    for (FileScanTask task : tasks) {
      if (random.nextDouble() >= share) {
        continue;
      }
      rewritten += 1;
      rewrite.deleteFile((DataFile) task.file());
      for (DeleteFile file : task.deletes()) {
        deletes.put(file.location() + " " + file.contentOffset(), file);
      }
      for (Record row : live(task, table.schema())) {
        key.partition(wrapper.wrap(row));
        if (!partitions.containsKey(key)) {
          partitions.put(key.copy(), new ArrayList<Record>());
        }
        ((List<Record>) partitions.get(key)).add(row);
      }
    }
    if (rewritten == 0) {
      return;
    }
    GenericFileWriterFactory factory = writers().build();
    for (Map.Entry<PartitionKey, List<Record>> one : partitions.entrySet()) {
      rewrite.addFile(write(factory, table.spec(), (PartitionKey) one.getKey(), (List<Record>) one.getValue()));
    }
    if (dropDeletes && rewritten == tasks.size()) {
      for (DeleteFile file : deletes.values()) {
        rewrite.deleteFile(file);
      }
    }
    rewrite.commit();
  }

  /** Puts the entries of all manifests into others, by partition or by file. */
  public void rewriteManifests(final boolean perFile) {
    table.refresh();
    table.rewriteManifests().clusterBy(new Function() {
      public Object apply(Object file) {
        return perFile ? ((DataFile) file).location() : ((DataFile) file).partition().toString();
      }
    }).commit();
  }

  /** The uids that Iceberg reads in a snapshot, separated by commas. */
  public String uids(long snapshot) throws IOException {
    table.refresh();
    List<Long> uids = new ArrayList<Long>();
    for (FileScanTask task : tasks(table.newScan().useSnapshot(snapshot))) {
      for (Record row : live(task, new Schema(table.schema().findField("uid")))) {
        uids.add((Long) row.get(0));
      }
    }
    Collections.sort(uids);
    StringBuilder text = new StringBuilder();
    for (Long uid : uids) {
      text.append(text.length() == 0 ? "" : ",").append(uid);
    }
    return text.toString();
  }

  private OutputFile newOutput(String kind, String suffix) {
    files += 1;
    return table.io().newOutputFile(table.locationProvider().newDataLocation(files + "-" + kind + "." + suffix));
  }

  private EncryptedOutputFile newFile(String kind) {
    return EncryptedFiles.plainAsEncryptedOutput(newOutput(kind, "parquet"));
  }

  private GenericFileWriterFactory.Builder writers() {
    GenericFileWriterFactory.Builder builder = new GenericFileWriterFactory.Builder(table);
    return builder.dataFileFormat(FileFormat.PARQUET).deleteFileFormat(FileFormat.PARQUET);
  }

  private DataFile write(
      GenericFileWriterFactory factory, PartitionSpec spec, StructLike partition, List<Record> rows)
      throws IOException {
    DataWriter<Record> writer = factory.newDataWriter(newFile("rows"), spec, partition);
    writer.write(rows);
    writer.close();
    return writer.toDataFile();
  }

  private static List<FileScanTask> tasks(TableScan scan) throws IOException {
    List<FileScanTask> tasks = new ArrayList<FileScanTask>();
    CloseableIterable planned = scan.planFiles();
    for (Object task : planned) {
      tasks.add((FileScanTask) task);
    }
    planned.close();
    Collections.sort(tasks, new Comparator() {
      public int compare(Object one, Object other) {
        return ((FileScanTask) one).file().location().compareTo(((FileScanTask) other).file().location());
      }
    });
    return tasks;
  }

  /** Rows of a file without those that are deleted. Deletes may compare columns that were dropped since. */
  private List<Record> live(FileScanTask task, Schema columns) throws IOException {
    LiveRows filter = new LiveRows(table, task, columns);
    final Schema schema = filter.requiredSchema();
    Function reader = new Function() {
      public Object apply(Object file) {
        return GenericParquetReaders.buildReader(schema, (MessageType) file);
      }
    };
    List<Record> rows = new ArrayList<Record>();
    InputFile file = table.io().newInputFile((DataFile) task.file());
    CloseableIterable stored = Parquet.read(file).project(schema).createReaderFunc(reader).build();
    for (Object row : filter.filter(stored)) {
      rows.add((Record) row);
    }
    stored.close();
    return rows;
  }

  /** Iceberg's own delete filter. */
  private static class LiveRows extends DeleteFilter {
    private final FileIO io;
    private final InternalRecordWrapper wrapper;

    LiveRows(final Table table, FileScanTask task, Schema columns) {
      super(task.file().location(), task.deletes(), new Function() {
        public Object apply(Object id) {
          Types.NestedField field = table.schema().findField(((Integer) id).intValue());
          for (Object schema : new TreeMap(table.schemas()).descendingMap().values()) { // the newest has the widest type
            field = field == null ? ((Schema) schema).findField(((Integer) id).intValue()) : field;
          }
          return field;
        }
      }, columns, new DeleteCounter(), true);
      this.io = table.io();
      this.wrapper = new InternalRecordWrapper(requiredSchema().asStruct());
    }

    protected StructLike asStructLike(Object row) {
      return wrapper.wrap((StructLike) row);
    }

    protected InputFile getInputFile(String location) {
      return io.newInputFile(location);
    }
  }
}
