"""Who may import whom: a table, checked against all imports in the code, lazy and for types included."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gptcli"
# From the top down. A module may import from its own folder and from every row below; two folders of one row
# do not import each other. A name that is not a folder is a single file.
FLOORS = (
    ("__main__",),
    ("cli",),
    ("train", "convert"),
    ("__init__",),  # it offers what api has
    ("api",),
    ("runtime",),
    ("parallel",),
    ("engine",),
    ("decode",),
    ("weights",),
    ("plots",),
    ("explain",),
    ("model",),
    ("tokenizer",),
    ("config",),
    ("system",),
    ("errors", "version"),
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}
# What the command line must not import: it uses api.
BELOW_API = {"decode", "engine", "model", "parallel", "runtime"}
MAX_COMMAND_LINES = 30


def modules() -> dict[str, Path]:
    """Return the path of every module by its dotted name; a package's is its __init__."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules of gptcli that a file imports, anywhere in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "gptcli":
                yield name if name in MODULES else name.rpartition(".")[0]


IMPORTS = {name: sorted(set(imports_of(path)) - {name}) for name, path in MODULES.items()}


def folder_of(module: str) -> str:
    """Return the folder of a module, or its own name if it lies at the top."""
    _, *inner = module.split(".")
    if not inner:
        return "__init__"
    return "__main__" if inner[-1] == "__main__" else inner[0]


def test_every_file_and_folder_has_a_floor():
    folders = {folder_of(module) for module in MODULES} - {"vocab"}
    assert folders == set(FLOOR_OF)
    assert sum(path.suffix == ".py" for path in PACKAGE.iterdir()) <= 7


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_only_go_down(module):
    mine = folder_of(module)
    for target in IMPORTS[module]:
        theirs = folder_of(target)
        assert theirs == mine or FLOOR_OF[theirs] > FLOOR_OF[mine], f"{module} imports {target}"


def test_no_imports_form_a_circle():
    assert circles(IMPORTS) == []


def test_the_check_for_circles_finds_one():
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [{"a", "b", "c"}]


def circles(graph: dict[str, list[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other in a circle."""
    reach = {start: reachable(graph, start) for start in graph}
    groups = []
    for module in graph:
        group = {other for other in reach[module] if module in reach.get(other, ())}
        if group and group not in groups:
            groups.append(group)
    return groups


def reachable(graph: dict[str, list[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph.get(module, ())
    return seen


def test_the_command_line_reaches_the_model_only_through_api():
    for module, targets in IMPORTS.items():
        if folder_of(module) == "cli":
            assert (
                not {folder_of(target) for target in targets if not is_for_types_only(module, target)}
                & BELOW_API
            )


def is_for_types_only(module: str, target: str) -> bool:
    """Return whether a module imports another only in blocks for type checkers."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    left = ast.unparse(tree)
    return target not in left


def test_the_body_of_a_command_fits_a_screen():
    bodies = {}
    for path in (PACKAGE / "cli").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "takes" in ast.unparse(
                node.decorator_list[:] or [ast.Pass()]
            ):
                bodies[node.name] = node.body[-1].end_lineno - node.body[0].end_lineno
    assert {"generate", "inspect", "train", "convert"} <= set(bodies)
    assert max(bodies.values()) <= MAX_COMMAND_LINES, bodies


def test_only_the_model_and_the_engines_compute_a_block():
    """Check that attention, the norm and the activations are not written again elsewhere."""
    markers = ("scaled_dot_product_attention", "layer_norm(", "F.gelu(")
    for module, path in MODULES.items():
        if folder_of(module) not in ("model", "engine"):
            assert not [marker for marker in markers if marker in path.read_text(encoding="utf-8")], module


def test_torch_is_imported_at_the_top_only_where_tensors_are():
    """The decode loop works on NumPy arrays; torch is imported with a model, not before."""
    torch_folders = {"model", "engine", "parallel", "explain", "train", "plots", "runtime"}
    torch_files = {
        "gptcli.weights.load",
        "gptcli.weights.save",
        "gptcli.weights.shard",
        "gptcli.system.device",
        "gptcli.convert.pickles",
    }
    for module, path in MODULES.items():
        top = [ast.unparse(node) for node in ast.parse(path.read_text(encoding="utf-8")).body]
        loads = any(line.startswith(("import torch", "from torch")) for line in top)
        assert not loads or folder_of(module) in torch_folders or module in torch_files, module
