"""Keeps both ends of a command's output, however much it writes; sent into the sandbox as text, too."""

MAX_OUTPUT_BYTES = 2**17
"""Bytes that are kept of each of stdout and stderr: half of them from its beginning, half from its end."""


class OutputEnds:
    """Head and tail of a stream of bytes."""

    def __init__(self, max_bytes: int = MAX_OUTPUT_BYTES) -> None:
        self._half = max_bytes // 2
        self.head, self.tail = bytearray(), bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        """Append the next bytes."""
        room = self._half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * self._half:
            self._shorten()

    def text(self) -> str:
        """Head and tail, with a line between them that tells how much is left out."""
        self._shorten()
        if not self._left_out:
            return (self.head + self.tail).decode(errors="replace")
        head, tail = (part.decode(errors="replace") for part in (self.head, self.tail))
        return f"{head}\n[... {self._left_out} bytes left out ...]\n{tail}"

    def _shorten(self) -> None:
        over = len(self.tail) - self._half
        if over > 0:
            self._left_out += over
            del self.tail[:over]
