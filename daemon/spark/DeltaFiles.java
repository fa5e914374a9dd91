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
 * The live files of a Delta table at one version, as Spark plans a scan of them. Janino compiles this class: it knows
 * no type parameters.
 */
public final class DeltaFiles implements FileIndex {
    private final Path root;
    private final StructType partitionSchema;
    private final List bounded; // names of columns
    private final InternalRow[] rows;
    private final FileStatus[] files;

    /**
     * Each row is a file: path, size, partition values, and bounds. The bounds are the number of rows, and for each of
     * the columns `bounded` the number of nulls, the minimum and the maximum; null where they are not known.
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
        Expression byValues = Literal.TrueLiteral(), byBounds = Literal.TrueLiteral();
        for (Object filter : CollectionConverters.asJava(partitionFilters)) byValues = new And(byValues, bound((Expression) filter));
        for (Object filter : CollectionConverters.asJava(dataFilters)) byBounds = new And(byBounds, possible((Expression) filter));
        List found = new ArrayList();
        for (int i = 0; i < this.rows.length; i++) {
            InternalRow values = this.rows[i].getStruct(2, this.partitionSchema.length());
            InternalRow bounds = this.rows[i].getStruct(3, 1 + 3 * this.bounded.size());
            // A condition on unknown bounds is null: the file may have such rows.
            if (Boolean.TRUE.equals(byValues.eval(values)) && !Boolean.FALSE.equals(byBounds.eval(bounds)))
                found.add(PartitionDirectory.apply(values, new FileStatus[] {this.files[i]}));
        }
        return CollectionConverters.asScala(found).toSeq();
    }

    /** The same condition, on a row of partition values. */
    private Expression bound(Expression filter) {
        if (filter instanceof AttributeReference) {
            int place = this.partitionSchema.fieldIndex(((AttributeReference) filter).name());
            return new BoundReference(place, filter.dataType(), true);
        }
        List children = new ArrayList();
        for (Object child : CollectionConverters.asJava(filter.children())) children.add(bound((Expression) child));
        return (Expression) filter.withNewChildren(CollectionConverters.asScala(children).toSeq());
    }

    private static Expression with(Expression filter, Object left, Object right) {
        return (Expression) filter.withNewChildren(CollectionConverters.asScala(Arrays.asList(new Object[] {left, right})).toSeq());
    }

    /** A condition on a row of bounds: false only if no row of such a file fulfils `filter`. */
    private Expression possible(Expression filter) {
        if (filter instanceof And || filter instanceof Or)
            return with(filter, possible((Expression) filter.children().head()), possible((Expression) filter.children().last()));
        Expression column = filter.children().isEmpty() ? filter : (Expression) filter.children().head();
        int place = column instanceof AttributeReference ? this.bounded.indexOf(((AttributeReference) column).name()) : -1;
        if (place < 0) return Literal.TrueLiteral();
        Expression nulls = new BoundReference(1 + 3 * place, DataTypes.LongType, true);
        Expression least = new BoundReference(2 + 3 * place, column.dataType(), true);
        Expression most = new BoundReference(3 + 3 * place, column.dataType(), true);
        if (filter instanceof IsNull) return new GreaterThan(nulls, new Literal(Long.valueOf(0), DataTypes.LongType));
        if (filter instanceof IsNotNull)
            return new LessThan(nulls, new BoundReference(0, DataTypes.LongType, true));
        if (filter instanceof In) {
            Expression any = Literal.FalseLiteral();
            for (Object value : CollectionConverters.asJava(((In) filter).list())) any = new Or(any, possible(new EqualTo(column, (Expression) value)));
            return any;
        }
        if (!(filter instanceof BinaryComparison) || !(filter.children().apply(1) instanceof Literal)) return Literal.TrueLiteral();
        Expression value = (Expression) filter.children().apply(1);
        if (filter instanceof EqualTo) return new And(new LessThanOrEqual(least, value), new GreaterThanOrEqual(most, value));
        if (filter instanceof LessThan || filter instanceof LessThanOrEqual) return with(filter, least, value);
        if (filter instanceof GreaterThan || filter instanceof GreaterThanOrEqual) return with(filter, most, value);
        return Literal.TrueLiteral();
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
