"""The option `--json`, in a class of its own: the field's name is its flag, its key in a file and
what `-h` and every message show, so it must be `json`, which is also a deprecated method of every
pydantic model. pydantic warns where a class has such a field."""

import warnings

from pydantic import Field
from pydantic_config import BaseConfig

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Field name .* shadows an attribute", UserWarning)

    class JsonOption(BaseConfig):
        """How the answer is printed."""

        json: bool = Field(False, exclude=True)  # type: ignore[assignment]
        """Print one JSON object on one line instead: for a run, that of result.json."""
