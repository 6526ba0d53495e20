"""TLS: a certificate that works, and what is said of those that do not."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from conch.gateway.transport.tls import context_of
from conch_build.errors import PlanError, SetupError
from conch_build.plan import load_plan
from conch_build.plan_admission import Tls


def self_signed(folder: Path, name: str = "server") -> Tls:
    """A certificate for 127.0.0.1 and its key, made by openssl."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return Tls(certificate=str(certificate), key=str(key))


def test_without_a_certificate_there_is_no_tls() -> None:
    assert context_of(Tls()) is None


def test_a_pair_becomes_a_context_of_a_version_that_is_still_safe(tmp_path: Path) -> None:
    context = context_of(self_signed(tmp_path))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_what_is_wrong_with_the_files_is_said_by_the_plans_key(tmp_path: Path) -> None:
    good, other = self_signed(tmp_path), self_signed(tmp_path, "other")
    noise = tmp_path / "noise.pem"
    noise.write_text("nothing")
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", str(good.key), "-aes256", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    absent = str(tmp_path / "absent.pem")
    for tls, words in (
        (Tls(certificate=absent, key=good.key), "tls.certificate: .*absent.pem cannot be read: No such file"),
        (Tls(certificate=good.certificate, key=absent), "tls.key: .*absent.pem cannot be read"),
        (Tls(certificate=good.certificate, key=other.key), "the key is not the certificate's"),
        (Tls(certificate=good.certificate), "cannot be read as certificate and key"),
        (Tls(certificate=str(noise), key=good.key), "cannot be read as certificate and key"),
        (Tls(certificate=good.certificate, key=str(locked)), "tls.key: the key is encrypted"),
    ):
        with pytest.raises(SetupError, match=f"serving.gateway.*{words}"):
            context_of(tls)


def test_the_plan_names_files_from_its_own_folder(tmp_path: Path) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(
        "name: a\nmodel: {checkpoint: sample}\nserving: {gateway: {tls: {certificate: a.pem, key: b.pem}}}\n"
    )
    tls = load_plan(plan).serving.gateway.tls
    assert (tls.certificate, tls.key) == (str(tmp_path / "a.pem"), str(tmp_path / "b.pem"))
    plan.write_text("name: a\nmodel: {checkpoint: sample}\nserving: {gateway: {tls: {key: b.pem}}}\n")
    with pytest.raises(PlanError, match=r"serving\.gateway\.tls.*`key` needs a `certificate`"):
        load_plan(plan)
