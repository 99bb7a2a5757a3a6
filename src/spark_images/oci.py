"""OCI image layouts: read and checked, written whole or not at all, and handed to Docker's older format."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from spark_images.errors import CanonicalError
from spark_images.files import room_on, sync_folder
from spark_images.layers import CHUNK, TAR, TAR_GZIP, TAR_ZSTD, open_layer
from spark_images.tarform import open_canonical

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
