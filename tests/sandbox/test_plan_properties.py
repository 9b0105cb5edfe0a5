"""Random policies on random trees: decisions, plans, and what an attacker could make of the next plan."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox.plan import PlanRefused, SandboxPlan
from execserver.sandbox.plan_record import decode_plan, encode_plan
from execserver.sandbox.policy.facts import Facts
from execserver.sandbox.policy.globs import compile_glob
from tests.sandbox.policies import Rules, plan, policy
from tests.sandbox.policy_model import Model, covers
from tests.sandbox.root_model import RANK, View
from tests.support.fake_host import FakeHost

_TOPS = ("ws", "tmp", "out")
_NAMES = ("a", "b", ".git")
_SHALLOW = [f"/{top}/{name}" for top in _TOPS for name in _NAMES]
_ALL = [*(f"/{top}" for top in _TOPS), *_SHALLOW, *(f"{path}/{name}" for path in _SHALLOW for name in _NAMES)]
_names = st.sampled_from(_NAMES)
paths = st.sampled_from(_ALL)
# Also what only an attacker makes.
_places_to_be = st.one_of(paths, st.sampled_from([f"{path}/c" for path in _ALL[:12]]))
_link_texts = st.one_of(
    paths, paths, _names, st.builds(lambda name: f"../{name}", _names), st.sampled_from(["/", ".", "/lib"])
).map(lambda text: f"-> {text}")
_things = st.one_of(st.just("gone"), st.just("gone"), st.just(b""), _link_texts, _link_texts)
_accesses = st.sampled_from(["read", "write", "write", "deny"])
_plain_places = st.one_of(
    paths,
    st.sampled_from(["root", "root", "minimal", "project_roots", "tmpdir", "slash_tmp", "unknown"]),
    _names.map(lambda name: f"project_roots/{name}"),
)
_patterns = st.sampled_from(
    ["**/a", "*.x", "a/*", "a/**", "/ws/**/b", "/ws/?", "/tmp/a/*", "**/.git", "/a/*/c", "b",
     "codex-project-roots://c", "/**/c", "/a/../ws/**/c", "a/**/b"]
)  # fmt: skip
_single_rules = st.tuples(_plain_places, _accesses).map(lambda rule: [rule])
_nested_rules = st.builds(
    lambda top, path, access: [(f"/{top}", "write"), (path, access)],
    st.sampled_from(_TOPS),
    paths,
    _accesses,
)
plain_rules = st.lists(st.one_of(_single_rules, _single_rules, _nested_rules), max_size=5).map(
    lambda groups: [rule for group in groups for rule in group]
)
# Always something to write to, and something said about a path in it.
_below = {top: [path for path in _ALL if path.startswith(f"/{top}/")] for top in _TOPS}
_writing_rules = st.sampled_from(_TOPS).flatmap(
    lambda top: st.builds(
        lambda path, access, more: (("root", "read"), (f"/{top}", "write"), (path, access), *more),
        st.sampled_from(_below[top]),
        st.sampled_from(["read", "write", "deny"]),
        st.lists(st.tuples(_plain_places, _accesses), max_size=2),
    )
)
all_rules = st.builds(
    lambda plain, patterns: (*plain, *((f"glob:{pattern}", "deny") for pattern in patterns)),
    plain_rules,
    st.lists(_patterns, max_size=2),
)
_roots = st.lists(paths, max_size=2).map(tuple)


@st.composite
def hosts(draw: st.DrawFn) -> FakeHost:
    """Return a tree of directories with files in the deepest; some of it is missing, a file or a link."""
    host = FakeHost(
        {"/dev": "dir", "/proc": "dir", "/usr/lib": "dir"}, draw(st.sampled_from([None, b"/out/a"]))
    )
    for path in _ALL:
        host.put(path, b"" if path.count("/") == 3 else "dir")
    host.put("/ws/.git", b"gitdir: " + draw(paths).encode()) if draw(st.booleans()) else None
    host.put("/lib", draw(st.sampled_from(["-> usr/lib", "-> /ws/a", "dir"])))
    for path, thing in draw(st.lists(st.tuples(paths, _things), max_size=6)):
        replace(host, path, thing)
    for path in [path for path in _ALL if path.encode() in host.nodes]:
        if host.nodes.get(path.rpartition("/")[0].encode() or b"/", (0,))[0] != 0o040000:
            host.remove(path)
    return host


def replace(host: FakeHost, path: str, thing: str | bytes) -> None:
    """Put something in the place of a path, if that is in a directory."""
    if _is_there(host, path.rpartition("/")[0] or "/"):
        host.remove(path)
        if thing != "gone":
            host.put(path, thing)


def real_paths(host: FakeHost) -> list[str]:
    """Return what is there, but for links and what is the view's own."""
    own = ("/dev", "/proc")
    return [
        path.decode()
        for path, (kind, _) in host.nodes.items()
        if kind != 0o120000 and not any(covers(mine, path.decode()) for mine in own)
    ]


def planned(host: FakeHost, rules: Rules, roots: tuple[str, ...], for_files: bool) -> SandboxPlan | None:
    try:
        return plan(host, *rules, roots=roots, for_files=for_files)
    except PlanRefused:
        return None


@given(hosts(), all_rules, _roots, st.booleans(), st.lists(paths, min_size=1, max_size=8))
def test_decisions_are_those_of_the_model(
    host: FakeHost, rules: Rules, roots: tuple[str, ...], for_files: bool, asked: list[str]
) -> None:
    model = Model(host, rules, "/ws", roots, for_files)
    resolved = policy(host, *rules, roots=roots, for_files=for_files)
    for path in [*asked, "/", *real_paths(host)]:
        assert resolved.access(path.encode()).access == model.names(path), path


@given(hosts(), plain_rules.map(tuple), _roots, st.booleans())
def test_a_view_gives_exactly_what_the_policy_says(
    host: FakeHost, rules: Rules, roots: tuple[str, ...], for_files: bool
) -> None:
    made = planned(host, rules, roots, for_files)
    if made is None:
        return
    view, model = View(made, host), Model(host, rules, "/ws", roots, for_files)
    for path in real_paths(host):
        assert RANK[view.access(path)] == RANK[model.places(path)], path
    assert decode_plan(encode_plan(made)) == made


@given(hosts(), all_rules, _roots, st.booleans())
def test_patterns_only_take_away(
    host: FakeHost, rules: Rules, roots: tuple[str, ...], for_files: bool
) -> None:
    made = planned(host, rules, roots, for_files)
    if made is None:
        return
    view, model = View(made, host), Model(host, rules, "/ws", roots, for_files)
    # Those are looked for below the project roots only, also where a link is why they begin at the root.
    everywhere = any(glob.prefix == b"/" for pattern in made.globs for glob in compile_glob(pattern))
    for path in real_paths(host):
        if not everywhere:
            assert RANK[view.access(path)] <= RANK[model.places(path)], path


@given(hosts(), plain_rules.map(tuple), _roots, st.booleans(), paths)
def test_what_is_missing_and_protected_cannot_be_made(
    host: FakeHost, rules: Rules, roots: tuple[str, ...], for_files: bool, path: str
) -> None:
    made = planned(host, rules, roots, for_files)
    parent = path.rpartition("/")[0] or "/"
    if made is None or parent not in real_paths(host) or path.encode() in host.nodes:
        return
    if not stat.S_ISDIR(host.nodes[parent.encode()][0]):
        return  # nothing can be made below a file
    view, model = View(made, host), Model(host, rules, "/ws", roots, for_files)
    if view.can_create(path):
        assert model.places(path) == "write"


@given(hosts(), all_rules, _roots, st.booleans())
def test_what_a_granted_path_leads_to_is_reached_in_the_view(
    host: FakeHost, rules: Rules, roots: tuple[str, ...], for_files: bool
) -> None:
    made = planned(host, rules, roots, for_files)
    if made is None or made.root == "host":
        return
    view, model = View(made, host), Model(host, rules, "/ws", roots, for_files)
    for grant in model.grants():
        real = model.real(grant.path)
        if grant.access != "deny" and real.encode() in host.nodes and view.access(real) != "nothing":
            assert view.leads_to(grant.path) == real


@st.composite
def attacked_rules(
    draw: st.DrawFn,
) -> tuple[Rules, list[tuple[str, str | bytes]], list[tuple[str, str, str]]]:
    """Return rules, what the rules find, and what is tried inside: to make links and to move things.

    Mostly it is tried on what the rules name and what is above it.
    """
    rules = draw(st.one_of(_writing_rules, _writing_rules, plain_rules.map(tuple)))
    named = [place for place, _ in rules if place.startswith("/")]
    near = [*named, *(place.rpartition("/")[0] for place in named if place.count("/") > 1)]
    target = st.one_of(st.sampled_from(near), _places_to_be) if near else _places_to_be
    fresh = st.sampled_from([f"{path}/c" for path in _ALL[:12]])
    act = st.one_of(
        st.tuples(st.just("link"), target, st.one_of(paths, st.just("/"), _names)),
        st.tuples(st.just("move"), target, st.one_of(fresh, _places_to_be)),
        st.tuples(st.just("mkdir"), target, st.just("")),
    )
    found = st.lists(st.tuples(st.sampled_from(near), _things), max_size=2) if near else st.just([])
    return rules, draw(found), draw(st.lists(act, min_size=1, max_size=6))


def carry_out(view: View, host: FakeHost, attack: list[tuple[str, str, str]]) -> None:
    """Do to the host what a command in the view could do."""
    for what, path, other in attack:
        if not _is_there(host, path.rpartition("/")[0] or "/"):
            continue
        there = path.encode() in host.nodes
        if what in ("link", "mkdir"):
            if there and view.can_move(path) and what == "link" and not _holds_mount(view, path):
                host.remove(path)
                there = False
            if not there and view.can_create(path):
                host.put(path, f"-> {other}" if what == "link" else "dir")
        elif there and _can_move_to(view, host, path, other):
            _move(host, path, other)
            view.move(path, other)


def _can_move_to(view: View, host: FakeHost, path: str, other: str) -> bool:
    parent = other.rpartition("/")[0] or "/"
    free = other.encode() not in host.nodes and _is_there(host, parent) and not covers(path, other)
    return free and view.can_move(path) and view.can_create(other)


def _holds_mount(view: View, path: str) -> bool:
    return any(mount.startswith(path + "/") for mount in (*view.mounts, *view.missing))


def _is_there(host: FakeHost, path: str) -> bool:
    """Tell whether a path is a directory and has no links."""
    names = path.split("/")
    above = ["/".join(names[:count]) or "/" for count in range(1, len(names) + 1)]
    return all(host.nodes.get(known.encode(), (0,))[0] == 0o040000 for known in above)


def _move(host: FakeHost, path: str, other: str) -> None:
    old, new = path.encode(), other.encode()
    for known in [known for known in host.nodes if known == old or known.startswith(old + b"/")]:
        host.nodes[new + known[len(old) :]] = host.nodes.pop(known)
        host.inodes[new + known[len(old) :]] = host.inodes[known]


def powers(view: View, host: FakeHost) -> dict[int, int]:
    """Return what can be done with each thing, whatever it is called."""
    return {host.inodes[path.encode()]: RANK[view.access(path)] for path in real_paths(host)}


@given(hosts(), attacked_rules(), _roots, st.booleans())
def test_nothing_done_inside_makes_the_next_plan_grant_more(
    host: FakeHost,
    attacked: tuple[Rules, list[tuple[str, str | bytes]], list[tuple[str, str, str]]],
    roots: tuple[str, ...],
    for_files: bool,
) -> None:
    rules, found, attack = attacked
    for path, thing in found:
        replace(host, path, thing)
    check_attack(host, rules, attack, roots, for_files)


_READ_WS = (("root", "read"), ("/ws", "write"))
_READ_TMP = (("root", "read"), ("/tmp", "write"))


@pytest.mark.parametrize(
    ("tree", "rules", "attack"),
    [
        ({"/ws/a/b": b""}, (*_READ_WS, ("/ws/a/b", "deny")), [("move", "/ws/a", "/ws/c")]),
        (
            {"/ws/a": "dir"},
            (*_READ_WS, ("/ws/a/b", "deny")),
            [("move", "/ws/a", "/ws/c"), ("mkdir", "/ws/a", ""), ("mkdir", "/ws/a/b", "")],
        ),
        (
            {"/tmp/a/b/.git": "dir"},
            (*_READ_TMP, ("/tmp/a/b", "write")),
            [("move", "/tmp/a", "/tmp/c")],
        ),
        ({"/tmp": "dir"}, (*_READ_TMP, ("/tmp/a", "write")), [("link", "/tmp/a", "/out")]),
        (
            {"/tmp/a": "-> b", "/tmp/b": "dir"},
            (*_READ_TMP, ("/tmp/a", "write")),
            [("link", "/tmp/a", "/out")],
        ),
        ({"/ws/a": "-> ."}, (("root", "read"), ("/ws/a", "write")), [("link", "/ws/a", "/out")]),
        ({"/ws/a": "-> b", "/ws/b": b""}, (*_READ_WS, ("/ws/a", "deny")), [("link", "/ws/a", "/out")]),
        (
            {"/ws/a": "dir"},
            (*_READ_WS, ("/ws/a", "read")),
            [("link", "/ws/a", "/out"), ("move", "/ws/a", "/ws/c")],
        ),
        (
            {"/tmp/a/.git": "dir", "/tmp/a/a": "-> ."},
            (*_READ_TMP, ("/tmp/a/a", "write")),
            [("link", "/tmp/a/a", "/gone")],
        ),
        ({"/ws": "dir"}, _READ_WS, [("link", "/ws/.git", "/out"), ("mkdir", "/ws/.codex", "")]),
        ({"/ws/.git": b"gitdir: g", "/ws/g": "dir"}, _READ_WS, [("move", "/ws/g", "/ws/c")]),
    ],
)
@pytest.mark.parametrize("for_files", [False, True])
def test_known_attacks_gain_nothing(
    tree: dict[str, str | bytes], rules: Rules, attack: list[tuple[str, str, str]], for_files: bool
) -> None:
    host = FakeHost({"/dev": "dir", "/proc": "dir", "/out/secret": b"", **tree})
    check_attack(host, rules, attack, (), for_files)


def check_attack(
    host: FakeHost,
    rules: Rules,
    attack: list[tuple[str, str, str]],
    roots: tuple[str, ...],
    for_files: bool,
) -> None:
    """Carry out an attack in the first view, and compare what the second one gives with the first."""
    facts = Facts()
    try:
        made = plan(host, *rules, roots=roots, for_files=for_files, facts=facts)
    except PlanRefused:
        return
    view, model = View(made, host), Model(host, rules, "/ws", roots, for_files)
    before = powers(view, host)
    closed = [path for path in _ALL if path.encode() not in host.nodes and model.places(path) != "write"]
    carry_out(view, host, attack)
    assert [path for path in closed if path.encode() in host.nodes] == []
    after = planned(host, rules, roots, for_files)
    if facts.hold(host):
        assert after == made
    if after is None:
        return
    for inode, power in powers(View(after, host), host).items():
        assert power <= before.get(inode, 2)
