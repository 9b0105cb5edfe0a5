"""The help text of the server, which is also the grammar of its command line."""

from __future__ import annotations

HELP = """\
Run commands and edit files on this machine for a Codex client, another program or a person.

Usage: execserver [OPTIONS]
       execserver doctor
       execserver relay
       execserver mcp
       execserver audit
       execserver network log <DIR>
       execserver upgrade [FILE]
       execserver rules check
       execserver token
       execserver box <add|list|remove>
       execserver run [BOX] -- <COMMAND>
       execserver shell [BOX]
       execserver ps [BOX]
       execserver attach [BOX] <NAME>
       execserver logs [BOX] <NAME>
       execserver wait [BOX] <NAME>
       execserver kill [BOX] <NAME>
       execserver cp <SOURCE>... <TARGET>
       execserver edit <BOX:PATH>...
       execserver find <[BOX:]PATH> [PATTERN]...
       execserver grep <PATTERN> <[BOX:]PATH>...
       execserver sync <SOURCE> <TARGET>
       execserver forward [BOX] <PORT:HOST:PORT>...
       execserver web [BOX]
       execserver completion <bash|zsh|fish>
       execserver help [VERB]
       execserver self-test
       execserver install-aliases [--codex] <DIR>
       execserver licenses
       execserver exec-server [OPTIONS]

Commands:
  doctor                    Show which sandbox works on this machine and what it enforces, and the reason and
                            the remedy for what does not work. Exits with 1 when some policy is refused here.
                            `doctor --json` prints it for programs.
  relay                     Host a relay: registry and rendezvous of remote environments and their users.
                            `relay token` manages who may use it. See `relay --help`.
  mcp                       Serve one tool, `shell`, to an MCP client on stdin and stdout: commands in a
                            sandbox, with rules and questions about what they start. See `mcp --help`.
  audit verify|show|cast <DIR>
                            Check an audit log, show what it says, or replay what was recorded. See
                            `audit --help`.
  network log <DIR>         Show where commands connected to, and what was refused them. See `network --help`.
  upgrade [FILE]            Put a newer file in the place of a running server, whose processes and connections
                            go on. See `upgrade --help`.
  rules check               Show what the rules of that tool decide about a command, and which rule decides.
                            See `rules --help`.
  token                     Manage tokens that let their holders connect, and say what they may do at most:
                            `token new`, `narrow`, `list`, `revoke`. See `token --help`.
  box                       Give other machines names: `box add NAME URL`, `list`, `remove`. See `box --help`.
  run [BOX] -- <COMMAND>    Run a command on another machine as if it were here: streams, signals, terminal
                            and exit status. See `run --help`.
  shell [BOX]               Open a login shell there. See `shell --help`.
  ps [BOX]                  Show the commands there that go on without a connection (`run -d`).
  attach [BOX] <NAME>       Come back to one of them: its screen and its keyboard.
  logs [BOX] <NAME>         Print what it has printed; -f goes on.
  wait [BOX] <NAME>         Wait for its end and return its status.
  kill [BOX] <NAME>         Send it a signal.
  cp <SOURCE>... <TARGET>   Copy files and trees to a box or from it; NAME:PATH is a path on one.
  edit <BOX:PATH>...        Edit files of a box in your editor; what others changed meanwhile stays.
  find <[BOX:]PATH> [PATTERN]...
                            Find files there by their names; --gitignore leaves out what git ignores.
  grep <PATTERN> <[BOX:]PATH>...
                            Find lines of files there.
  sync <SOURCE> <TARGET>    Make one like the other, with a box on one side: only what differs travels.
  forward [BOX] <PORT:HOST:PORT>...
                            Forward TCP connections through it; --reverse the other way, --socks for all.
  web [BOX]                 Open a console in the browser: processes, terminals, files and ports of boxes.
  completion <SHELL>        Print what bash, zsh or fish needs to complete verbs, options and boxes.
  help [VERB]               Print the text about a verb; --man: as a manual page.
  self-test                 Start a server on loopback, run commands and file calls through it, and report
                            whether everything works here.
  install-aliases <DIR>     Make symlinks in DIR by whose names other programs find this one, e.g. codex-fs.
                            With --codex one named `codex`, too, for who starts `codex exec-server`.
  licenses                  Print the licence of this program and of everything its file carries.
  exec-server               The server, as the codex CLI names it: the options below may follow.
                            `exec-server forward` registers another one: see `exec-server forward --help`.

Options:
  --listen <URL>            ws://IP:PORT, wss://IP:PORT, unix:///PATH or stdio [default: ws://127.0.0.1:0]
                            Port 0 takes a free one. The URL in use is printed on stdout, alone on a line.
                            A Unix socket is for its user only. stdio carries one JSON message per line and
                            ends with its input.
  --ws-auth <MODE>          Ask who connects: capability-token (one token), signed-bearer-token (JWTs by
                            HS256), execserver-token (those of `execserver token`, with what each allows) or
                            oidc (JWTs of an OpenID Connect provider). Clients send `Authorization: Bearer
                            TOKEN`. Without it whoever reaches the port runs commands as you.
  --ws-token-file <PATH>    File with the capability token. Read once, like the secret.
  --ws-token-sha256 <HEX>   Its SHA-256 digest instead.
  --ws-shared-secret-file <PATH>
                            File with the secret that signs the JWTs, of 32 bytes at least.
  --ws-issuer <ISSUER>      What their `iss` must be.
  --ws-audience <AUDIENCE>  What their `aud` must be or contain.
  --ws-max-clock-skew-seconds <SECONDS>
                            How far clocks may differ where they expire or begin; 30 if not given. With
                            oidc 300 at most.
  --oidc-issuer <URL>       The provider, exactly as its tokens' `iss` says it. Its keys come from its
                            configuration at URL/.well-known/openid-configuration (https, or loopback).
  --oidc-audience <AUDIENCE>
                            What their `aud` must be or contain.
  --oidc-jwks <FILE>        Take the keys from this file instead, a JWK set. Read again when it changes.
  --tls-cert <FILE>         Certificate of wss:// with its chain, PEM. SIGHUP reads it again.
  --tls-key <FILE>          Its key, PEM.
  --client-ca <FILE>        Take only clients with a certificate of this authority, PEM.
  --keep-max <TIME>         How long clients can have their sessions kept without a connection, such as 90m,
                            8h or 7d; 24h if not given. 0: no longer than the usual 30 s.
  --spool-max <SIZE>        How much output of a process in a kept session stays readable, on disk beyond the
                            1 MiB in memory: such as 64M (if not given) or 1G. 0: none. The files have no
                            names, and are in TMPDIR, else in /var/tmp.
  --limit-process <NAME=VALUE>
                            What each process may use at most with all it starts, and has if its client says
                            nothing: memory, file (such as 512M), processes, open-files, cpu (such as 150%),
                            time, cpu-time (such as 90s). The kernel has to hold it by cgroup v2 (see
                            `doctor`), unless `enforce=best`. Give it again for each.
  --limit-session <NAME=VALUE>
                            What all processes of a session may use together: memory, processes, cpu.
  --allow-forward <WHERE>   Where clients can have connections forwarded to, and listen: none, loopback, any;
                            loopback if not given.
  --network-rules <FILE>    Let commands reach only what this file of rules lists (TOML: allow, deny, review;
                            read once). Each gets a network of its own with nothing but a proxy in it.
  --metrics <IP:PORT>       Serve figures for Prometheus at http://IP:PORT/metrics, on a loopback address.
  --audit <DIR>             Record in this folder what is done here, in a log that shows later changes: see
                            `execserver audit --help`. It is hidden from sandboxed commands.
  --audit-required          Refuse what could not be recorded, e.g. on a full disk. Else it is done, and the
                            log says how many records are missing.
  --pass-trace              Give a process the trace of the request that starts it, in TRACEPARENT.
  --upgrade-on-hup          On SIGHUP do as `execserver upgrade` does. Else SIGHUP ends the server, or with
                            wss:// has it read its certificate again.
  --survive-crash           Start the server again when it is killed: sessions, processes and their unread
                            output stay. On ws:// and unix:// only, and without limits, network proxies,
                            recordings and output on disk.
  --insecure-listen         Listen on an address that others can reach, and ask nobody who they are.
  --remote <URL>            Serve through a relay instead: register with the registry at this base URL.
                            No port is opened; all traffic through the relay is encrypted end to end.
  --environment-id <ID>     Environment to register as. Needed with --remote.
  --executor-id <ID>        Register by the contract of May 2026 instead, which encrypts nothing itself.
  --name <NAME>             Name of the environment, for the log.
  --use-agent-identity-auth
                            Authenticate the registration with the Agent Identity in CODEX_ACCESS_TOKEN.
  --registration-bearer-stdin
                            Take the registration's bearer token from stdin: one line, at most 16 KiB.
  --executor-credential-stdin
                            Take credentials from stdin: a line of JSON each; a later one takes the place of
                            the one before. Ends with stdin.
  --chatgpt-token-stdin     Take a ChatGPT access token from stdin, a pipe: one line.
  --chatgpt-account-id <ID>
                            The account that this token must be of.
  --api-key-host <HOST>     Let an API key go to this host, too, over https. Else it goes to openai.com,
                            openai.org and the loopback only.
  --remote-transport <REMOTE_TRANSPORT>
                            noise; direct is not part of this program.
  --aws-sigv4               Not part of this program, as are the three that follow.
  --aws-region <REGION>
  --aws-profile <PROFILE>
  --aws-service <SERVICE>
  --concurrent-requests <COUNT>
                            1: each request waits for the one before, long polls too. More: so many requests
                            of a connection at a time (at most 256), answered as they are ready; those for one
                            process, and those for files, keep their order. Without it requests keep their
                            order, and those that wait delay no other.
  --linux-sandbox-pid-namespace <MODE>
                            isolate: a sandboxed process sees its own processes only. inherit: it sees those
                            of the server, too; a policy for which that cannot be safe is refused.
  --proxy-private-ips-via-upstream
                            A command's network proxy sends private addresses through the proxies of the
                            server's environment, too, where its policy allows those; else it never does.
  --exit-on-stdin-close     With --remote: end when stdin does, as on SIGTERM.
  -c, --config <key=value>  Accepted for command lines shared with the codex CLI. With --remote,
                            chatgpt_base_url and cli_auth_credentials_store count. May be repeated.
  --strict-config           Refuse -c/--config fields the codex CLI does not know.
  --enable <FEATURE>        Accepted for the same reason; may be repeated.
  --disable <FEATURE>       Accepted for the same reason; may be repeated.
  --log-level <LEVEL>       off, error, warn, info, debug or trace.
  --log-format <FORMAT>     text or json.
  -V, --version             Print the version and exit.
  -h, --help                Print this text and exit.

Environment:
  EXECSERVER_LOG            Log level when --log-level is not given (default warn, with --remote info).
                            RUST_LOG is read too.
  EXECSERVER_ALLOW_NESTED_SANDBOXES
                            1: commands may make nested sandboxes (bubblewrap, podman, nix). They may then
                            write to FIFOs outside the writable roots, too.
  EXECSERVER_ACKNOWLEDGED_RECORDS
                            1: with --remote, clients may number their records from 1 and acknowledge ours,
                            as upstream proposes.
  EXECSERVER_CONTRACT_VERSION
                            Version of the codex CLI to report to clients and as `codex --version`, where they
                            decide by it. Default: that of the contract.
  CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE
                            true: the same as --exit-on-stdin-close.
  CODEX_API_KEY             Signs in with --remote. Else CODEX_ACCESS_TOKEN, else auth.json in CODEX_HOME.

A client reaches the server by its URL:
  CODEX_EXEC_SERVER_URL=ws://127.0.0.1:PORT codex
Every sandbox mode of the client works; `execserver doctor` shows what enforces it here.
GET /readyz answers 200.

Exit status: 0 after SIGTERM or SIGINT, which end the children; 1 cannot serve; 2 wrong usage.
"""
