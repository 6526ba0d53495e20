"""What the database holds of files and batches. Times are seconds since the epoch."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, String, Table

from conch.gateway.database import metadata

files = Table(
    "files",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("filename", String, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("purpose", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Index("files_of_owner", "owner", "created_at"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("place", String, nullable=False),  # of its files, which not every gateway has that shares the database
    Column("status", String, nullable=False),
    Column("endpoint", String, nullable=False),
    Column("input_file_id", String, nullable=False),
    Column("completion_window", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("moments", JSON, nullable=False),  # when it took each of its later states
    Column("metadata", JSON(none_as_null=True)),
    Column("output_seconds", Integer),  # how long its files are kept
    Column("output_id", String, nullable=False),  # also while the file is being written
    Column("error_id", String, nullable=False),
    Column("model", String),
    Column("total", Integer, nullable=False, default=0),
    Column("completed", Integer, nullable=False, default=0),
    Column("failed", Integer, nullable=False, default=0),
    Column("usage", JSON(none_as_null=True)),
    Column("errors", JSON(none_as_null=True)),
    Index("batches_of_owner", "owner", "created_at"),
    Index("batches_by_status", "status"),
)
