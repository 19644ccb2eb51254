"""That a provider is two things: its file in provision/providers/ and its section in spec/providers.py."""

from __future__ import annotations

from pathlib import Path

from tests.support.additions import Package

SHED = '''"""A shed: a cluster of old laptops."""

from rankzero.provision.kubernetes import access
from rankzero.provision.programs import Command
from rankzero.provision.steps import Found, Step


class Shed:
    programs = ("shed",)

    def steps(self, spec):
        def find(programs, facts):
            return Found(spec.name) if spec.name in programs.ask("shed", "ls").split() else None

        made = [Command(("shed", "open", spec.name))]
        key = [Command(("shed", "key", spec.name))]
        return [
            Step("cluster", spec.name, find, lambda facts: made, lambda facts: [Command(("shed", "shut", spec.name))]),
            access(spec.name, lambda facts: key),
        ]


PROVIDER = Shed()
'''
USE = """
from pathlib import Path
from rankzero.api.provisioning import Provisioning
from rankzero.errors import ConfigError

file = Path("infra.yaml")
file.write_text("provider: shed\\nname: back\\nnodes: {name: n, drivers: x}\\n")
try:
    Provisioning(file, None, print)
except ConfigError as error:
    print(error.problems[0].where, error.problems[0].what)
file.write_text("name: back\\nnodes: {name: n}\\n")
for one in Provisioning(file, "shed", print).plan(look=False):
    print(one.title, one.commands)
"""


def test_a_provider_is_two_files(tmp_path: Path) -> None:
    package = Package(tmp_path)
    section = '    "kind": ProviderSection('
    changed = {"spec/providers.py": (section, f'    "shed": ProviderSection(cannot=("nodes.drivers",)),\n{section}')}
    package.add({"provision/providers/shed.py": SHED}, changed)
    assert package.python(USE).splitlines() == [
        "infra.yaml:3 nodes.drivers shed has no use for it",
        "cluster back ('shed open back',)",
        "kubeconfig back ('shed key back',)",
    ]
