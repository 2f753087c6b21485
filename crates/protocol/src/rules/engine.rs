//! Rules of the server itself: HTTP, callers and their tokens, limits, configuration, the store, and what starts runners.

macro_rules! engine_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        // The head of a request.
        HeaderRepeated "header-repeated" SchemaInvalid "A header that may occur once occurs twice.";
        Authority "authority" SchemaInvalid "The request target names another host than the Host header.";
        HostMissing "host-missing" OriginDenied "The request has no Host header.",
            hint: Some("send a Host header");
        Host "host" OriginDenied "The host name is not one of this server's.",
            hint: Some("address the server by a name it accepts, such as 127.0.0.1 or localhost; `server.hosts` in its config adds names");
        Origin "origin" OriginDenied "Pages of this origin may not call the server.",
            hint: Some("the operator allows pages with `server.allow_origins` in the server's config, or `--allow-origin`");
        BareLineFeed "bare-line-feed" SchemaInvalid "A line of the head ends without a carriage return.";
        ContentLength "content-length" SchemaInvalid "The length of the body is not a plain number.";
        ContentType "content-type" UnsupportedMediaType "The body does not have the required content type.",
            hint: Some("send `Content-Type: application/json`, unless the operation takes another type");
        Charset "charset" SchemaInvalid "The body is declared in another encoding than UTF-8.";
        QueryShape "query-shape" SchemaInvalid "The query does not match its schema.",
            hint: Some("check the query parameters; `/docs` lists those of every operation");
        IdempotencyKey "idempotency-key" SchemaInvalid "The Idempotency-Key header is not text, or differs from the body's key.";
        IfMatch "if-match" SchemaInvalid "The If-Match header is not text, or differs from the body's version.";
        Websocket "websocket" SchemaInvalid "The request does not open a WebSocket.";

        // The body of a request.
        BodyLate "body-late" SchemaInvalid "The body did not arrive in time.";
        BodyRead "body-read" SchemaInvalid "The body ended before it was complete.";
        BodySize "body-size" PayloadTooLarge "The body is too large.",
            hint: Some("send less at once; docs/limits.md has the limits");
        BodyShape "body-shape" SchemaInvalid "The body does not match its schema.",
            hint: Some("check the fields named above; `/docs` has the shape of every body");
        JsonMalformed "json-malformed" SchemaInvalid "The text is not JSON.",
            hint: Some("check the JSON at the place named above");
        JsonDepth "json-depth" SchemaInvalid "The JSON nests too deeply.",
            hint: Some("nest less deeply; docs/limits.md has the limits");
        JsonString "json-string" PayloadTooLarge "A string of the JSON is too long.",
            hint: Some("shorten the text; docs/limits.md has the limits");
        JsonValues "json-values" PayloadTooLarge "The JSON has too many members and items.",
            hint: Some("send less at once; docs/limits.md has the limits");

        // Callers, and what they may do.
        Role "role" Forbidden "Callers of this kind may not use this operation.",
            hint: Some("use a token of the kind that this operation takes; docs/callers.md lists them");
        Tenant "tenant" Forbidden "The caller does not belong to the tenant.",
            hint: Some("use a token of that tenant, or name another one with `--tenant`");
        Owner "owner" Forbidden "The thread or attachment belongs to another user.",
            hint: Some("use the token of its owner");
        Run "run" Forbidden "The token is for another run.",
            hint: Some("use a token that is not bound to another run");
        Undeclared "undeclared" Forbidden "The path declares no access, so no caller has any.";
        UserUnknown "user-unknown" Forbidden "The operator has not added this user, or has removed the user.",
            hint: Some("the operator adds users with `ostler users add`");
        UserTaken "user-taken" StateConflict "Another user has this name or this subject.",
            hint: Some("choose another name; `ostler users list` lists those that exist");
        UserSubject "user-subject" SchemaInvalid "An issuer was given without a subject, or a subject without an issuer.",
            hint: Some("give `--issuer` and `--subject` together");
        UserOutside "user-outside" StateConflict "The user's tokens are made by another issuer.",
            hint: Some("get the token from the user's own issuer");
        Tenants "tenants" SchemaInvalid "The list of tenants is empty, too long, or names a tenant twice.",
            hint: Some("list each tenant once, and at least one");
        Issuer "issuer" SchemaInvalid "The issuer is not configured, or its configuration is invalid.",
            hint: Some("check `auth.issuers` in the server's config");
        IssuerKeys "issuer-keys" InfraFailed "The keys of the issuer cannot be fetched.",
            hint: Some("check `jwks_url` or `jwks_file` of the issuer in the server's config, and that the server can reach it");

        // Limits on what is open or under way at once.
        RateLimit "rate-limit" RateLimited "The caller sends requests too fast.";
        Followers "followers" RateLimited "Too many event streams are open.",
            run_input_code: Some("AGENT_SSE_CONNECTION_LIMIT_EXCEEDED");
        FollowersPerCaller "followers-per-caller" RateLimited "The caller has too many event streams open.",
            run_input_code: Some("AGENT_SSE_CONNECTION_LIMIT_EXCEEDED");
        Uploads "uploads" RateLimited "Too many files are being uploaded.";
        UploadsPerCaller "uploads-per-caller" RateLimited "The caller is uploading too many files.";
        SideQueries "side-queries" RateLimited "Too many side questions are being answered.";
        SideQueriesPerCaller "side-queries-per-caller" RateLimited "The caller has too many side questions being answered.";
        Sockets "sockets" RateLimited "Too many WebSockets are open.";
        SocketsPerCaller "sockets-per-caller" RateLimited "The caller has too many WebSockets open.";
        Work "work" RateLimited "Too many bytes of requests are in flight.";
        WorkPerCaller "work-per-caller" RateLimited "Too many bytes of the caller's requests are in flight.";

        // Retention.
        HoldTarget "hold-target" SchemaInvalid "A hold covers a tenant, a session or an identity, and the request names none or several of them.",
            hint: Some("name a tenant, a session or an identity");
        HoldReason "hold-reason" SchemaInvalid "The reason of a hold is empty, too long, or has control characters.",
            hint: Some("give the reason in one line");
        LegalHold "legal-hold" StateConflict "A legal hold covers it, so that it cannot be deleted.",
            hint: Some("the operator can list and release holds: `ostler retention holds`");

        // The configuration, and the start of the server.
        Config "config" SchemaInvalid "The configuration is invalid.",
            hint: Some("correct the settings named above; docs/configuration.md lists every setting with its meaning");
        ConfigFile "config-file" SchemaInvalid "The configuration file cannot be read.",
            hint: Some("name a file that exists and can be read with `--config`, or leave the flag out: every setting has a default");
        DataDir "data-dir" InfraFailed "There is no usable data directory.",
            hint: Some("choose another directory with `--data-dir` or OSTLER_DATA_DIR");
        DatabaseUrl "database-url" SchemaInvalid "The address of the database is invalid.",
            hint: Some("give a URL like postgres://USER@HOST/DATABASE with `--database-url` or DATABASE_URL, or none for SQLite");
        AllowOrigin "allow-origin" SchemaInvalid "The text is not an origin.",
            hint: Some("give scheme, host and port only, such as https://console.example; `*` is allowed together with `--require-auth`");
        OpenLoopback "open-loopback" SchemaInvalid "The server may be open to all callers on a loopback address only.",
            hint: Some("listen on 127.0.0.1, or do without `--open-loopback`");
        Listen "listen" InfraFailed "The server cannot listen on its address.",
            hint: Some("give an address of this machine and a port that you may use, such as `--listen 127.0.0.1:4747`"),
            hints_by_kind: &[(FailureKind::StateConflict, "stop the other program, or let `--listen 127.0.0.1:0` pick a free port"),
                (FailureKind::SchemaInvalid, "give an address and a port, such as `--listen 127.0.0.1:4747`")];
        Tls "tls" InfraFailed "The certificate or the key for TLS is unusable.",
            hint: Some("check `--tls-cert` and `--tls-key`: a certificate chain and its key, both PEM");
        TokenFile "token-file" InfraFailed "A file with a token or key of the server is unusable.",
            hint: Some("correct or remove the file named above; a new one is made at the next start");
        TokenFileMode "token-file-mode" InfraFailed "Other users of the machine can read a file with a token or key.",
            hint: Some("make it private: `chmod 600 FILE`");
        SecretsKey "secrets-key" InfraFailed "The key for sealing secrets is invalid.",
            hint: Some("the key is 64 hexadecimal digits: check `secrets.key` or the file of `secrets.key_file`");
        SecretStore "secret-store" InfraFailed "The store of secrets failed.",
            hint: Some("check the directory `secrets` in the server's data directory; the server's log has the cause");
        SecretDamaged "secret-damaged" SecretUnavailable "A secret cannot be opened: it is damaged, or was sealed with another key.",
            hint: Some("store the secret again with `ostler profiles set PROFILE`, or restore the key that sealed it");
        SecretDenied "secret-denied" SecretUnavailable "The cluster does not let the server read or write a Secret.",
            hint: Some("grant the server's account get, create, update and delete of Secrets in its namespace; `ostler doctor --kubernetes` checks the rights");
        Workspace "workspace" InfraFailed "The server cannot be bound to the workspace.",
            hint: Some("give `--workspace` the absolute path of an existing directory outside of the data directory");
        Attachments "attachments" InfraFailed "The store of attachments cannot be opened.",
            hint: Some("check the settings of `[attachments]` in the server's config");
        WeakDurability "weak-durability" InfraFailed "The database could lose acknowledged writes.",
            hint: Some("turn fsync, synchronous_commit and full_page_writes on in Postgres, or set `store.sqlite_synchronous` to full; `--unsafe-durability` starts all the same");
        Directory "directory" InfraFailed "A directory of the server could not be created.",
            hint: Some("check the permissions and free space of the server's data directory");
        DirectoryClear "directory-clear" InfraFailed "A directory of the server could not be cleared.",
            hint: Some("check the permissions of the server's data directory");

        // The store.
        Store "store" InfraFailed "The store cannot be opened.",
            hint: Some("check the file or the database named above; `verify` and `serve` must be able to write beside it"),
            hints_by_kind: &[(FailureKind::StateConflict,
                "stop the other process, or give this one another `--data-dir` or a Postgres with `--database-url`")];
        StoreAbsent "store-absent" NotFound "There is no store at this place.",
            hint: Some("name the server's own data directory with `--data-dir`, or its Postgres with `--database-url`");
        StoreVersion "store-version" InfraFailed "Another release has changed the store.",
            hint: Some("start the newest release that has used the store, or restore a backup that was made before the upgrade");
        StoreCompacted "store-compacted" StateConflict "A running server uses the SQLite file that was to be compacted.",
            hint: Some("stop the server, compact, and start it again; a running server returns free space by itself after each sweep and each `ostler retention run`");
        StoreServed "store-served" StateConflict "A running server uses the store.",
            hint: Some("stop the server, or verify a copy: `ostler backup --no-workspaces FILE`, `ostler restore FILE --data-dir COPY`, then `ostler verify --data-dir COPY`");
        StoreCorrupt "store-corrupt" InfraFailed "A stored row cannot be read.",
            hint: Some("stop the server and run `ostler verify`; docs/operating.md describes how to restore a backup");
        StoreFailed "store-failed" InfraFailed "The store failed.", is_store_fault: true,
            hint: Some("the server's log has the cause under the trace id");
        StoreDiskFull "store-disk-full" InfraFailed "The disk of the store is full.", is_store_fault: true,
            hint: Some("free space on the disk of the store, then try again");
        StoreDiskFailed "store-disk-failed" InfraFailed "The disk of the store failed.", is_store_fault: true,
            hint: Some("check the disk of the store; the server's log has the cause");
        StoreReadOnly "store-read-only" InfraFailed "The store cannot be written.", is_store_fault: true,
            hint: Some("make the store writable: check its permissions, and whether Postgres is a standby");
        StoreOutOfMemory "store-out-of-memory" InfraFailed "The store has no memory left.", is_store_fault: true,
            hint: Some("give the database more memory, or the server fewer connections");
        StoreNoFreeConnection "store-no-free-connection" InfraFailed "The store has no free connection.", is_store_fault: true,
            hint: Some("raise max_connections of Postgres, or stop other clients of it");
        StoreStarting "store-starting" InfraFailed "The store is starting or stopping.", is_store_fault: true,
            hint: Some("wait until the database has started, then try again");
        StoreUnreachable "store-unreachable" InfraFailed "The store cannot be reached.", is_store_fault: true,
            hint: Some("start the database, or correct `--database-url` or DATABASE_URL");
        StoreDenied "store-denied" InfraFailed "The store rejects the server's credential.", is_store_fault: true,
            hint: Some("correct the user and password in `--database-url` or DATABASE_URL");
        StoreSilent "store-silent" InfraFailed "The store does not respond.", is_store_fault: true,
            hint: Some("check that the database works and that the network to it does");
        LaneQueue "lane-queue" Overloaded "Too many writes wait for the store.";

        // Backups.
        Backup "backup" InfraFailed "The backup could not be written or read.",
            hint: Some("check the path, its permissions and the free space of the disk, then try again");
        BackupTarget "backup-target" StateConflict "There is a file of this name already, or it is not a place for a backup.",
            hint: Some("name a file that does not exist, outside the data directory");
        BackupDamaged "backup-damaged" SchemaInvalid "The file is not a backup, or it is damaged.",
            hint: Some("nothing was restored; use another backup");
        BackupKey "backup-key" SecretUnavailable "The backup is encrypted, and the passphrase or identity does not open it.",
            hint: Some("use what it was encrypted to: `--identity FILE`, or the passphrase (`--passphrase-file FILE`)");
        BackupPlaces "backup-places" StateConflict "The configuration keeps a part of the backup in another place.",
            hint: Some("restore with the configuration that the server had, or remove the setting that is named above");
        RestoreTarget "restore-target" StateConflict "The data directory or the database to restore into is not empty.",
            hint: Some("name an empty directory with `--data-dir`, and on Postgres an empty database with `--database-url`");
        RestoreUnfinished "restore-unfinished" StateConflict "A restore into this data directory was cut off.",
            hint: Some("delete the directory, and on Postgres the database, and restore again");

        // What starts backends.
        RunnerSpawn "runner-spawn" InfraFailed "The process of the runner did not start.",
            hint: Some("the server's log has the cause; `ostler doctor` checks what runners need");
        RunnerStarts "runner-starts" InfraFailed "No runner could finish the turn, and no other one is started.",
            hint: Some("`ostler jobs list RUN` shows how the last runner ended");
        ClusterRoom "cluster-room" InfraFailed "The cluster has as many unfinished runner Jobs as it may have.",
            status: Some(409),
            hint: Some("wait until runs have ended, or raise `kubernetes.active_jobs_max` in the server's config");
        ClusterCall "cluster-call" InfraFailed "The API server of the cluster could not be reached, or refused the call.",
            hint: Some("the server's log has the cause; check `kubernetes` in its config and the rights of its account");
        ClusterConfig "cluster-config" SchemaInvalid "The settings of the cluster cannot be used.",
            hint: Some("check the section `kubernetes` of the server's config");
        LogLines "log-lines" SchemaInvalid "The number of lines of a log is out of range.";
        LogAfter "log-after" SchemaInvalid "The position in the log is not one that a response named.";
        AgentProgram "agent-program" InfraFailed "The program of the agent is not installed, or did not start.",
            hint: Some("install the program on the server's machine, and restart the server; `ostler doctor` checks it");
        ProfileProgram "profile-program" InfraFailed "The program that the profile's command names is not installed, or did not start.",
            hint: Some("install the program on the server's machine, or change the profile's command: `ostler profiles config PROFILE --file FILE`");
        AgentHome "agent-home" InfraFailed "The home directory of the backend could not be created.",
            hint: Some("check the permissions and free space of the server's data directory");
        Environment "environment" InfraFailed "The secrets could not be removed from the environment.";
        Descriptors "descriptors" InfraFailed "Inherited file descriptors could not be closed.";
        Order "order" InfraFailed "The guard of the backend cannot read its order.";
        Namespaces "namespaces" InfraFailed "The namespaces of the backend could not be set up.";
        Guard "guard" InfraFailed "The guard of the backend failed.";
        Start "start" InfraFailed "The program of the backend did not start.",
            hint: Some("check that the agent's program is installed on the server, at the path in its profile or config");
    } };
}
