package dvsync;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.CRC32;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.util.SerializableConfiguration;
import org.roaringbitmap.longlong.Roaring64NavigableMap;

/**
 * Marks the rows that the deletion vector (DV) of their file holds: 1, others 0. Each task has its own copy, which reads
 * a file's DV at the first row of the file. Janino compiles this, so there are no type parameters.
 */
public final class DeletionMarker implements UDF2 {
    private static final int MAGIC = 1681511377; // Delta PROTOCOL.md, "Deletion Vector Format"

    private final Broadcast hadoopConf; // of SerializableConfiguration
    private transient byte[] descriptor; // of the DV that `deleted` is
    private transient Roaring64NavigableMap deleted;

    public DeletionMarker(Broadcast hadoopConf) {
        this.hadoopConf = hadoopConf;
    }

    /** Returns the marker. `descriptor` is as scan_files.py encodes it, or null for a file without a DV. */
    public Column column(String name, Column descriptor, Column rowIndex) {
        return functions.udf((UDF2) this, DataTypes.ByteType).withName(name).apply(new Column[] {descriptor, rowIndex});
    }

    public Object call(Object descriptor, Object rowIndex) throws IOException {
        if (descriptor == null) return Byte.valueOf((byte) 0);
        // The vectorized reader has the same object for all rows of a file.
        if (descriptor != this.descriptor) {
            if (!Arrays.equals((byte[]) descriptor, this.descriptor)) this.deleted = read((byte[]) descriptor);
            this.descriptor = (byte[]) descriptor;
        }
        return Byte.valueOf((byte) (this.deleted.contains(((Long) rowIndex).longValue()) ? 1 : 0));
    }

    private Roaring64NavigableMap read(byte[] descriptor) throws IOException {
        ByteBuffer fields = ByteBuffer.wrap(descriptor);
        long offset = fields.getLong(), cardinality = fields.getLong();
        int size = fields.getInt(), pathEnd = descriptor.length - (offset < 0 ? size : 0);
        String path = new String(descriptor, fields.position(), pathEnd - fields.position(), "UTF-8");
        try {
            byte[] bytes = descriptor;
            if (offset >= 0) bytes = readFrame(new Path(path), offset, size);
            DataInputStream data = new DataInputStream(new ByteArrayInputStream(bytes, bytes.length - size, size));
            if (Integer.reverseBytes(data.readInt()) != MAGIC) throw new EOFException("the DV's magic is not " + MAGIC);
            Roaring64NavigableMap positions = new Roaring64NavigableMap();
            positions.deserializePortable(data);
            if (positions.getLongCardinality() != cardinality || data.available() > 0)
                throw new EOFException("the DV does not hold " + cardinality + " positions");
            return positions;
        } catch (EOFException error) {
            // failures.py parses this.
            String place = " [file " + path + ", offset " + offset + "]";
            throw new IllegalStateException("CorruptInput: " + error.getMessage() + place, error);
        }
    }

    /** Returns size, magic and bitmap. Delta PROTOCOL.md, "Deletion Vector File Storage Format". */
    private byte[] readFrame(Path path, long offset, int size) throws IOException {
        byte[] frame = new byte[4 + size + 4];
        SerializableConfiguration conf = (SerializableConfiguration) this.hadoopConf.value();
        FSDataInputStream file = path.getFileSystem(conf.value()).open(path);
        try {
            file.readFully(offset, frame);
        } finally {
            file.close();
        }
        CRC32 crc = new CRC32();
        crc.update(frame, 4, size);
        ByteBuffer fields = ByteBuffer.wrap(frame);
        if (fields.getInt(0) != size) throw new EOFException("the DV's size in its file is not the log's, " + size);
        if (fields.getInt(4 + size) != (int) crc.getValue())
            throw new EOFException("the DV's bytes do not match the CRC-32 in its file");
        return Arrays.copyOf(frame, 4 + size);
    }
}
