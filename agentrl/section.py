"""The base of every table of a run file."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Unknown keys are refused, and so are numbers that are not finite; the docstring under a field describes it.

    TOML cannot say "no value": `"off"` says it, for every key that may have none and is not a text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _off_is_none(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: None if value == "off" and cls._may_be_off(key) else value for key, value in values.items()}

    def changed(self, *keys: str) -> str:
        """Those of `keys` whose values are not their defaults, as `key = value, …`; "" where there are none.

        A resolved configuration that is read back gives every key, so that values are compared, not what was given.
        """
        values = {key: getattr(self, key) for key in keys}
        fields = type(self).model_fields
        return ", ".join(f"{key} = {value!r}" for key, value in values.items() if value != fields[key].default)

    @classmethod
    def _may_be_off(cls, key: str) -> bool:
        kinds = get_args(cls.model_fields[key].annotation) if key in cls.model_fields else ()
        return type(None) in kinds and str not in kinds
