package dvsync;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.util.SerializableConfiguration;
import org.roaringbitmap.PeekableIntIterator;
import org.roaringbitmap.RoaringBitmap;

/**
 * Tells for a row of a data file whether the file's deletion vector (DV) has it: 1, else 0. Each task has a copy of its
 * own, which reads the DV of a file at the first row of it. Janino compiles this class: it knows no type parameters.
 */
public final class DeletionMarker implements UDF2 {
    // Delta PROTOCOL.md, "Deletion Vector Format"; the native form is in Delta's RoaringBitmapArray.scala.
    private static final int PORTABLE = 1681511377, NATIVE = 1681511376;

    private final Broadcast hadoopConf;
    private transient byte[] vector; // the descriptor of the DV that is loaded
    private transient Map bitmaps; // upper 32 bits of a position -> RoaringBitmap of the lower ones
    private transient long block; // the 65,536 positions that `bits` holds: their upper 48 bits
    private transient long[] bits;

    public DeletionMarker(Broadcast hadoopConf) {
        this.hadoopConf = hadoopConf;
    }

    /** The marker as a column. `vector` is null, or as scan_files.py encodes it. */
    public Column column(String name, Column vector, Column rowIndex) {
        return functions.udf((UDF2) this, DataTypes.ByteType).withName(name).apply(new Column[] {vector, rowIndex});
    }

    public Object call(Object vector, Object rowIndex) throws IOException {
        if (vector == null) return Byte.valueOf((byte) 0);
        // Mostly the same object: the vectorized reader has one for all rows of a file.
        if (vector != this.vector) {
            if (!Arrays.equals((byte[]) vector, this.vector)) load((byte[]) vector);
            this.vector = (byte[]) vector;
        }
        long position = ((Long) rowIndex).longValue();
        if (position >>> 16 != this.block) decodeBlock(position >>> 16);
        return Byte.valueOf((byte) (this.bits[(int) (position >>> 6) & 1023] >>> position & 1));
    }

    private void decodeBlock(long wanted) {
        Arrays.fill(this.bits, 0L);
        this.block = wanted;
        RoaringBitmap bitmap = (RoaringBitmap) this.bitmaps.get(Long.valueOf(wanted >>> 16));
        if (bitmap == null) return;
        PeekableIntIterator positions = bitmap.getIntIterator();
        positions.advanceIfNeeded((int) wanted << 16);
        while (positions.hasNext() && positions.peekNext() >>> 16 == (wanted & 0xFFFF)) {
            int position = positions.next();
            this.bits[(position & 0xFFFF) >>> 6] |= 1L << position;
        }
    }

    private void load(byte[] descriptor) throws IOException {
        ByteBuffer fields = ByteBuffer.wrap(descriptor);
        long offset = fields.getLong(), cardinality = fields.getLong();
        int size = fields.getInt();
        byte[] rest = new byte[fields.remaining()];
        fields.get(rest);
        String path = new String(rest, 0, rest.length - (offset < 0 ? size : 0), "UTF-8");
        this.vector = null;
        this.bitmaps = new HashMap();
        this.bits = new long[1024];
        this.block = -1;
        try {
            byte[] blob = rest;
            if (offset >= 0) blob = readFrame(new Path(path), offset, size);
            DataInputStream data = new DataInputStream(new ByteArrayInputStream(blob, blob.length - size, size));
            if (decode(data) != cardinality || data.available() > 0)
                throw new EOFException("the DV does not hold " + cardinality + " positions");
        } catch (EOFException error) {
            // The form of this text is known to failures.py.
            String place = " [file " + path + ", offset " + offset + "]";
            throw new IllegalStateException("CorruptInput: " + error.getMessage() + place);
        }
    }

    /** Returns size, magic, bitmaps. Delta PROTOCOL.md, "Deletion Vector File Storage Format". */
    private byte[] readFrame(Path path, long offset, int size) throws IOException {
        byte[] frame = new byte[4 + size + 4];
        FileSystem store = path.getFileSystem(((SerializableConfiguration) this.hadoopConf.value()).value());
        FSDataInputStream file = store.open(path);
        try {
            file.readFully(offset, frame);
        } finally {
            file.close();
        }
        CRC32 crc = new CRC32();
        crc.update(frame, 4, size);
        ByteBuffer fields = ByteBuffer.wrap(frame);
        if (fields.getInt(0) != size) throw new EOFException("the DV's size in its file is not the " + size + " of the log");
        if (fields.getInt(4 + size) != (int) crc.getValue())
            throw new EOFException("the DV's bytes do not match the CRC-32 in its file");
        return Arrays.copyOf(frame, 4 + size);
    }

    /** Fills `bitmaps`, and returns how many positions they hold; -1 for an unknown form. All fields are little-endian. */
    private long decode(DataInputStream data) throws IOException {
        int magic = Integer.reverseBytes(data.readInt());
        if (magic != PORTABLE && magic != NATIVE) return -1;
        long count = magic == PORTABLE ? Long.reverseBytes(data.readLong()) : Integer.reverseBytes(data.readInt());
        long positions = 0;
        for (long number = 0; number < count; number++) {
            int upperOrSize = Integer.reverseBytes(data.readInt());
            RoaringBitmap bitmap = new RoaringBitmap();
            bitmap.deserialize(data);
            this.bitmaps.put(Long.valueOf(magic == PORTABLE ? upperOrSize : number), bitmap);
            positions += bitmap.getLongCardinality();
        }
        return positions;
    }
}
