"""Table sinks for `foreachBatch`: write to database tables or Parquet files, exactly once.

from ottla.spark import table_sinks

sink = table_sinks.upsert(
    "postgresql://user:pw@host/db", table="customers", key=["id"], sink_id="customers"
)
query = df.writeStream.foreachBatch(sink).option("checkpointLocation", "…").start()
"""

from ottla.spark.table_sinks.errors import BatchRefused, RowsRefused, SchemaMismatch, SinkError
from ottla.spark.table_sinks.files import parquet_table, read_table
from ottla.spark.table_sinks.table import append, upsert

__all__ = [
    "BatchRefused",
    "RowsRefused",
    "SchemaMismatch",
    "SinkError",
    "append",
    "parquet_table",
    "read_table",
    "upsert",
]
