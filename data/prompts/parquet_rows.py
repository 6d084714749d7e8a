"""Writes the rows of the Parquet file argv[1] as JSON lines. Exits with 3 if the file cannot be read, 4 if pyarrow is
missing, and one line on standard error."""

import sys

sys.path[:] = filter(None, sys.path)  # Import nothing from the working directory.

import json
import os

ROWS_AT_ONCE = 256


def refuse(code, text):
    sys.stderr.write(" ".join(str(text).split()) + "\n")
    sys.stderr.flush()
    os._exit(code)  # No flush: standard output may be closed.


def as_json(value):
    """Converts bytes, dates and decimals, which JSON lacks."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def write_rows(path, parquet):
    row = 0
    try:
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            lines = [json.dumps(record, ensure_ascii=False, default=as_json) for record in batch.to_pylist()]
            sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode())
            row += len(lines)
        sys.stdout.buffer.flush()
    except Exception as error:  # pylint: disable=broad-except
        refuse(3, f"cannot be read behind row {row}: {error}")


try:
    import pyarrow.parquet
except ImportError:
    refuse(4, "a Parquet file is read with Python's pyarrow, which " + sys.executable + " does not have; install it with: "
           "python3 -m pip install pyarrow (Debian's python3 wants a virtual environment first: "
           "python3 -m venv ~/jforge-python && . ~/jforge-python/bin/activate)")
write_rows(sys.argv[1], pyarrow.parquet)
