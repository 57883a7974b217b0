"""The settings under which texts are not distributed as the target model's, found in the classes and the options."""

from __future__ import annotations

from reason.config.compose import instantiate, list_options, load_option

LOSSY = (
    *(
        f"acceptance={name}"
        for name in list_options("acceptance")
        if not instantiate("acceptance", load_option("acceptance", name)).lossless
    ),
    *(f"router={name}" for name in list_options("router") if name != "off"),
    *(f"eviction={name}" for name in list_options("eviction") if name != "none"),
)
