"""`SGLANG_OEA_K0`: every form that is refused, numbers, schedules and profiles."""

import pytest
from stubs import read, refused


@pytest.mark.parametrize(
    "k0",
    ["four", "-1", "+4", "3.5", "4,", ",4", "4,8", "1:8,1:4", "8:4,2:8", "0:4", "1:0", "1:0,2:0"]
    + ["1:", ":4", "1:-4", "1:8;8:4", "1:4:2", "²", "٤", "0x4", "1e3", "9" * 10, "no/such.json"],
)
def test_bad_k0(k0):
    """Holds that a k0 that does not parse is refused, never replaced."""
    refused("SGLANG_OEA_K0 is not valid", f"got:      SGLANG_OEA_K0={k0}\n", K0=k0)


def test_k0_that_never_applies():
    """Holds that a schedule that starts beyond SGLANG_OEA_MAX_ROWS is refused."""
    refused("SGLANG_OEA_MAX_ROWS=256", K0="257:4")
    refused("SGLANG_OEA_MAX_ROWS=8", K0="9:4", MAX_ROWS="8")
    assert read(K0="256:4") and read(K0="9:4", MAX_ROWS="9") and read(K0="1:4,300:2")


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("{", "a readable profile JSON"),
        ("", "a readable profile JSON"),
        (b"\xff\xfe", "a readable profile JSON"),
        ("[4]", '"k0": number or schedule'),
        ("{}", '"k0": number or schedule'),
        ('{"k0": 4, "layer": {}}', '"k0": number or schedule'),
        ('{"k0": 4, "layers": [5]}', '"k0": number or schedule'),
        ('{"k0": 4, "layers": {"first": 5}}', '"k0": number or schedule'),
        ('{"k0": 4, "layers": {"-1": 5}}', '"k0": number or schedule'),
        ('{"k0": true}', "not True"),
        ('{"k0": 4.5}', "not 4.5"),
        ('{"k0": null}', "not None"),
        ('{"k0": 4, "layers": {"3": [5]}}', "not [5]"),
        ('{"k0": "8:4,2:8"}', "rows ascending from 1"),
        ('{"k0": -4}', "a whole number such as 4"),
        ('{"k0": "300:4", "layers": {"3": "400:2"}}', "SGLANG_OEA_MAX_ROWS=256"),
    ],
)
def test_bad_profile(tmp_path, profile, said):
    """Holds that a profile is refused for what is wrong in it, naming its path."""
    path = tmp_path / "profile.json"
    path.write_bytes(profile if isinstance(profile, bytes) else profile.encode())
    refused(said, f"SGLANG_OEA_K0={path}", K0=str(path))


def test_unreadable_profile(tmp_path, monkeypatch):
    """Holds that a profile without read permission is refused, not a traceback."""
    path = tmp_path / "profile.json"
    path.write_text('{"k0": 4}')

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    # root reads any file, so the refusal cannot come from the file's mode
    monkeypatch.setattr("builtins.open", denied)
    refused("a readable profile JSON", "Permission denied", K0=str(path))
