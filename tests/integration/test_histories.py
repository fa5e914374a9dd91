def test_x(spark, tmp_path):
    import time
    src=f"{tmp_path}/t"
    def tm(s):
        t0=time.time(); r=spark.sql(s.replace("{t}",f"delta.`{src}`")); print(round(time.time()-t0,2),s[:80]); return r
    tm("create table {t} (id int, s string, p string) using delta partitioned by (p) tblproperties('delta.enableDeletionVectors'='true')")
    tm("insert into {t} select /*+ REPARTITION(2) */ id, 'x'||id, 'a b/c=d%é' from range(20)")
    for i in range(3):
        tm(f"delete from {{t}} where id%7={i}")
        tm(f"update {{t}} set s='y' where id%5={i}")
        t0=time.time()
        a=spark.sql(f"select *, _metadata.file_path fp, _metadata.row_index ri from delta.`{src}`").toArrow(); print("rows",time.time()-t0)
        t0=time.time()
        a=spark.sql(f"select * from delta.`{src}`").toArrow(); print("read", time.time()-t0)
