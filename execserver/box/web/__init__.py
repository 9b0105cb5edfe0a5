"""The console of `execserver web`: what the pages in the browser ask for, and what they get.

One process on loopback; its URL has 128 random bits, without which it answers 404.  Boxes are reached by the
Python client; what they send is bounded here and is text, never markup, for the pages.

The pages
---------
`SECRET/` is `static/index.html`, `SECRET/NAME` the file NAME of `static/` (no folders).  `SECRET/xterm.js`
and `SECRET/xterm.css` are in no checkout: 404 where this file was built without the terminal.  xterm.js
5.5.0, a classic script, sets the global `Terminal`.

Content security policy: scripts and styles come from files of the console only; no `style` attribute, no
`<style>` element, no inline script, no `eval`, no `data:`, no other origin, no `innerHTML` (Trusted Types).
Properties of `element.style`, constructed style sheets and `adoptedStyleSheets` work.  xterm.js makes
`<style>` elements, which the policy leaves without effect: their text has to be put into a constructed style
sheet of the document (observe the terminal's element for them, and for changes of their text).

Requests
--------
`SECRET/ws` is a WebSocket.  `{"id": n, "method": m, "params": {}}` is answered, in any order, by
`{"id": n, "result": r}` or `{"id": n, "error": {"message": t, "hint": t or null, "code": c}}`; `code` is one
of "failed", "unreachable", "unsupported", "changed", "exists", "not-found", "wrong", "busy", "timeout".
Events are `{"event": name, ...}`.  Binary messages are terminal bytes behind 4 bytes, the channel's number,
big end first.  A message may have 8 MiB.  64 requests of a browser are answered at a time; each has 30 s, the
first one to a box 40 s.  Messages that are none end the WebSocket.  16 browsers at a time; 503 for more.

`box` is a name from `boxes.list`.  A path is absolute, a text whose bytes that are no UTF-8 are lone
surrogates U+DC80 to U+DCFF (JSON escapes carry them; in a URL they are the bytes: `%80` to `%FF`).

boxes.list {}  ->  [{name, url, default, state, latency_ms, version, sandbox, error, home}]
    state: "connected" (in use here), "reachable", "unreachable"; `default` is the box of the command line;
    home: null until it is connected
processes.list {box}  ->  [{session, process_id, name, argv, state, exit_code, started, tty, own, writer,
                            cpu_percent, memory_bytes, watchers}]
    state: "running", "exited"; started: Unix milliseconds; own: started here, ends with the console;
    writer: whether the console may write, null if nobody has opened it here
usage.follow {box, on}  ->  {}
    event usage {box, at, processes: [{process_id, cpu_percent, memory_bytes}]}, every 2 s; at as started
process.start {box, argv?, cwd?, tty?, name?, sandbox?, keep?, record?}  ->  {process_id}
    no argv: the login shell, on a terminal; sandbox: "read-only", "workspace-write", "danger-full-access";
    keep: true goes on for 24 h without the console (`run -d`); record: "output", "all" (`run --record`)
process.signal {box, process_id, signal}  ->  {}
    signal: "TERM", "INT", "KILL", ...
log {box, process_id, before?}  ->  {pieces: [{seq, stream, at_ms, data}], before}
    data: base64; `before` of an answer asks for what was printed before that, null: there is no more; some
    pieces come again, by their seq
terminal.open {box, process_id, cols, rows}  ->  {channel, writer, tty}
    at most 64 of a browser, and of a box
terminal.resize {channel, cols, rows}  ->  {}      without an effect unless this channel writes
terminal.take {channel}  ->  {}                    this channel writes from now on
terminal.close {channel}  ->  {}                   ends nothing on the box
    event terminal.gap {channel, lost_bytes}       this browser, or the console, was too slow; null: unknown
    event terminal.exited {channel, exit_code}     nothing follows; null: unknown
    event terminal.writer {channel, writer}
    event terminal.dropped {channel, bytes}        input beyond 1 MiB that the process does not read
    event connection {box, state}                  "connected", "lost" (it is being resumed), "ended"
files.list {box, path?}  ->  {path, entries: [{name, kind, size, mtime_ms, mode}], truncated}
    no path: the home; kind: "directory", "file", "other", of what a link leads to; size, mtime_ms and mode
    may be null; 5000 entries at most, 2000 of them with these, and as many as are looked at in 2 s
files.read {box, path}  ->  {text, version, truncated, size}
    at most 1 MiB; text null: no UTF-8
files.write {box, path, text, version?}  ->  {version}
    version null: only if there is no such file, else the error "exists"; left out: whatever is there;
    another one than that of the file: the error "changed"
files.mkdir {box, path}  ->  {}
files.remove {box, path, recursive}  ->  {}
files.rename {box, from, to}  ->  {}               the error "exists" if `to` is there
ports.list {box}  ->  [{port, address, process, process_id, user, url}]
    url: where it is forwarded to here, or null
ports.forward {box, port, address?}  ->  {url}     32 at most
ports.close {url}  ->  {}
sandbox.report {box}  ->  {kernel, uid, native, mounts, userNamespace, seccomp, landlockAbi, bubblewrap,
                           checks: [{name, works, detail, blocker, cure}],
                           policies: [{name, backEnd, detail, blocker, cure}]}

Files
-----
`GET SECRET/files?box=NAME&path=PATH` is a download, always an attachment.  `PUT` to the same address uploads
the body, which appears whole or not at all: 201, or 204 for a file that was there; with `If-None-Match: *`
412 for one that is there.  Other answers are text: 400, 403, 404, 411 (no Content-Length), 502 (the box).
"""
