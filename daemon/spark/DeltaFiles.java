package dvsync;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The live files of a Delta table at one version, for Spark's planner. Janino compiles this, so there are no type
 * parameters.
 */
public final class DeltaFiles implements FileIndex {
    private final Path root;
    private final StructType partitionSchema;
    private final List bounded; // names of columns
    private final InternalRow[] rows;
    private final FileStatus[] files;

    /**
     * A row is a file: path, size, partition values, bounds. The bounds are the number of rows, and for each of the
     * columns `bounded` the number of nulls, the minimum and the maximum; null if unknown.
     */
    public DeltaFiles(String root, StructType partitionSchema, StructType bounded, InternalRow[] rows) {
        this.root = new Path(root);
        this.partitionSchema = partitionSchema;
        this.bounded = Arrays.asList(bounded.fieldNames());
        this.rows = rows;
        this.files = new FileStatus[rows.length];
        for (int i = 0; i < rows.length; i++) {
            Path path = new Path(rows[i].getUTF8String(0).toString());
            this.files[i] = new FileStatus(rows[i].getLong(1), false, 1, 1L << 27, 0L, path);
        }
    }

    public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
        Expression onValues = Literal.TrueLiteral(), onBounds = Literal.TrueLiteral();
        for (Object filter : CollectionConverters.asJava(partitionFilters))
            onValues = new And(onValues, onValues((Expression) filter));
        for (Object filter : CollectionConverters.asJava(dataFilters))
            onBounds = new And(onBounds, onBounds((Expression) filter));
        List found = new ArrayList();
        for (int i = 0; i < this.rows.length; i++) {
            InternalRow values = this.rows[i].getStruct(2, this.partitionSchema.length());
            InternalRow bounds = this.rows[i].getStruct(3, 1 + 3 * this.bounded.size());
            // Where bounds are unknown, the condition is null, and the file must be read.
            if (Boolean.TRUE.equals(onValues.eval(values)) && !Boolean.FALSE.equals(onBounds.eval(bounds)))
                found.add(PartitionDirectory.apply(values, new FileStatus[] {this.files[i]}));
        }
        return CollectionConverters.asScala(found).toSeq();
    }

    /** Returns the same condition on a file's partition values. */
    private Expression onValues(Expression filter) {
        if (filter instanceof AttributeReference) {
            int place = this.partitionSchema.fieldIndex(((AttributeReference) filter).name());
            return new BoundReference(place, filter.dataType(), true);
        }
        List children = new ArrayList();
        for (Object child : CollectionConverters.asJava(filter.children())) children.add(onValues((Expression) child));
        return with(filter, children);
    }

    /** Returns a condition on a file's bounds that is false only if the filter is true for no row of the file. */
    private Expression onBounds(Expression filter) {
        if (filter.children().isEmpty()) return Literal.TrueLiteral();
        Expression left = (Expression) filter.children().head(), right = (Expression) filter.children().last();
        if (filter instanceof And || filter instanceof Or)
            return with(filter, Arrays.asList(new Object[] {onBounds(left), onBounds(right)}));
        int place = left instanceof AttributeReference ? this.bounded.indexOf(((AttributeReference) left).name()) : -1;
        if (place < 0) return Literal.TrueLiteral();
        Expression rows = new BoundReference(0, DataTypes.LongType, true);
        Expression nulls = new BoundReference(1 + 3 * place, DataTypes.LongType, true);
        Expression least = new BoundReference(2 + 3 * place, left.dataType(), true);
        Expression most = new BoundReference(3 + 3 * place, left.dataType(), true);
        if (filter instanceof IsNull) return new GreaterThan(nulls, new Literal(Long.valueOf(0), DataTypes.LongType));
        if (filter instanceof IsNotNull) return new LessThan(nulls, rows);
        if (filter instanceof In) {
            Expression any = Literal.FalseLiteral();
            for (Object value : CollectionConverters.asJava(((In) filter).list()))
                any = new Or(any, onBounds(new EqualTo(left, (Expression) value)));
            return any;
        }
        if (!(right instanceof Literal)) return Literal.TrueLiteral();
        if (filter instanceof EqualTo)
            return new And(new LessThanOrEqual(least, right), new GreaterThanOrEqual(most, right));
        if (filter instanceof LessThan || filter instanceof LessThanOrEqual)
            return with(filter, Arrays.asList(new Object[] {least, right}));
        if (filter instanceof GreaterThan || filter instanceof GreaterThanOrEqual)
            return with(filter, Arrays.asList(new Object[] {most, right}));
        return Literal.TrueLiteral();
    }

    private static Expression with(Expression filter, List children) {
        return (Expression) filter.withNewChildren(CollectionConverters.asScala(children).toSeq());
    }

    public Seq rootPaths() {
        return CollectionConverters.asScala(Arrays.asList(new Object[] {this.root})).toSeq();
    }

    public StructType partitionSchema() {
        return this.partitionSchema;
    }

    public String[] inputFiles() {
        String[] paths = new String[this.files.length];
        for (int i = 0; i < paths.length; i++) paths[i] = this.files[i].getPath().toUri().toString();
        return paths;
    }

    public long sizeInBytes() {
        long size = 0;
        for (int i = 0; i < this.files.length; i++) size += this.files[i].getLen();
        return size;
    }

    public void refresh() {}
}
