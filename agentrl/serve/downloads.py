"""Downloads of checkpoints: by signed addresses, which need no key, and end with this process or their time.

Invariant: an address is of one file, or of an archive of one checkpoint, that its owner has asked for.
"""

import hmac
import os
import secrets
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from starlette.responses import FileResponse, Response, StreamingResponse

from agentrl.http.refusals import Refused
from agentrl.serve.runs import NOTE

SECONDS = 900
"""Time in which a download has to begin, as SDKs up to 0.32 assume."""
SECRET = secrets.token_bytes(32)
WHOLE = "checkpoint_complete"
"""File of an archive that tells the SDK that it is whole."""
BLOCK = 2**20


def signed(checkpoint: Path, file: str, expires: int) -> str:
    """The address of a file of a checkpoint; without a name that of an archive of all."""
    path = "/".join([str(expires), *checkpoint.parts[-3:], file])
    return f"download/{hmac.new(SECRET, path.encode(), 'sha256').hexdigest()}/{path}"


def download(runs: Path, address: str) -> Response:
    """The file behind an address. Raises Refused, and ValueError for another form."""
    _, _, expires, run, kind, name, file = address.split("/", 6)
    checkpoint = runs / run / kind / name
    valid = hmac.compare_digest(address.encode(), signed(checkpoint, file, int(expires)).encode())
    if not valid or int(expires) < time.time() or not (checkpoint / file).exists():
        raise Refused("this address is not valid, or no longer: ask for another one", "missing")
    return FileResponse(checkpoint / file) if file else StreamingResponse(archive(checkpoint))


def names_of(checkpoint: Path) -> Sequence[str]:
    """The names of its files, the note last."""
    files = [str(file.relative_to(checkpoint)) for file in checkpoint.rglob("*") if file.is_file()]
    return sorted(files, key=lambda name: (name == NOTE, name))


def archive(checkpoint: Path) -> Iterator[bytes]:
    """The bytes of a tar file of a checkpoint."""
    with ExitStack() as opened:  # all at once: another checkpoint may take the name meanwhile
        files = [(name, opened.enter_context((checkpoint / name).open("rb"))) for name in names_of(checkpoint)]
        for name, file in files:
            entry = tarfile.TarInfo(WHOLE if name == NOTE else name)
            entry.size = os.fstat(file.fileno()).st_size
            yield entry.tobuf()
            yield from iter(partial(file.read, BLOCK), b"")
            yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
