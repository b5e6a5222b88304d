import pytest

from ottla.client.errors import BrokerUnreachable
from ottla.spark.pipeline.causes import cause_of, is_file_fault
from ottla.spark.table_sinks import SinkError
from ottla.spark.values.errors import RegistryError

QUERY = "\n=== Streaming Query ===\nIdentifier: r.o [id = ed53110e]\nCurrent Committed Offsets: {}\n\nLogical Plan:\n+- x\n"
IN_A_WORKER = """\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/home/me/flow.py", line 30, in f
    def f(x): return 1/(x-x)
                     ~^^~~~~
ZeroDivisionError: division by zero
 SQLSTATE: 38000"""
IN_FOREACH_BATCH = """\
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "/home/me/flow.py", line 32, in write
    raise KeyError("hey")
KeyError: 'hey'
"""
OURS = """\
[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance call `latestOffset`: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/sql/streaming/x.py", line 181, in main
    x()
  File "/src/ottla/spark/source/stream.py", line 5, in y
    raise OptionError
ottla.spark.options.OptionError: there is no topic nowhere: create it
or take another

\tat org.apache.spark.sql.execution.python.Streaming(x.scala:1)"""
TWO = """\
Traceback (most recent call last):
  File "/home/me/flow.py", line 1, in a
    x
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/flow.py", line 2, in b
    y
RuntimeError: second
"""
IN_SQL = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you mean one of the following? [`value`]. SQLSTATE: 42703; line 1 pos 7;
'Project ['nope]
+- ~SubqueryAlias ticks
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (IN_A_WORKER + QUERY, "ZeroDivisionError: division by zero\nin /home/me/flow.py, line 30"),
        (IN_FOREACH_BATCH + QUERY, "KeyError: 'hey'\nin /home/me/flow.py, line 32"),
        (OURS + QUERY, "there is no topic nowhere: create it\nor take another"),
        (TWO + QUERY, "RuntimeError: second\nin /home/me/flow.py, line 2"),
        (IN_SQL, "A column with name `nope` cannot be resolved. Did you mean one of the following? [`value`] line 1 pos 7;"),
        ("[USER_RAISED_EXCEPTION] x0 SQLSTATE: P0001" + QUERY, "x0"),
        ("Job aborted\n\tat org.apache.X(Y.scala:1)\n\tat b", "Job aborted"),
        ("", "no reason was given"),
    ],
)  # fmt: skip
def test_the_cause_without_the_traces(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_a_long_cause_is_cut() -> None:
    assert cause_of("\n".join("abcdefghij")).splitlines() == [*"abcdef", "…"]


def named(name: str, *bases: type[Exception]) -> type[Exception]:
    return type(name, bases or (Exception,), {})


@pytest.mark.parametrize(
    ("error", "is_files"),
    [
        (ValueError("x"), True),
        (TypeError("x"), True),
        (KeyError("x"), True),
        (SinkError("a database URL cannot start with …"), True),
        (named("AnalysisException")("no column x"), True),
        (named("ParseException", named("AnalysisException"))("no SQL"), True),
        (named("AnalysisException")("ottla.client.errors.BrokerUnreachable: no broker"), False),
        (named("Py4JJavaError")("x"), False),
        (RegistryError("no registry"), False),
        (BrokerUnreachable("no broker"), False),
        (ConnectionRefusedError(111, "refused"), False),
    ],
)
def test_whose_fault_it_is(error: Exception, is_files: bool) -> None:
    assert is_file_fault(error) is is_files
