//! Rules of the client and the command line: addresses, the connection, and what a server responds.

macro_rules! client_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        ServerAddress "server-address" SchemaInvalid "The text is not the address of a server.",
            hint: Some("name the server as http://HOST:PORT, with `--server` or in its context");
        ServerUnreachable "server-unreachable" ServerUnreachable "The server cannot be reached.",
            hint: Some("is the server running? `ostler serve` starts one here, `--server` or `--context` names another, and \
                `ostler doctor` checks the connection");
        ServerWithoutTls "server-without-tls" ServerUnreachable "The response on an https:// address is not TLS.",
            hint: Some("check the scheme and the port of the address, in `--server`, OSTLER_SERVER or the context; \
                docs/proxy.md puts TLS in front of a server");
        ServerCertificate "server-certificate" ServerUnreachable "The server's certificate is not trusted here.",
            hint: Some("the server responds, but its certificate is not trusted here: set OSTLER_CA_FILE to the file with its authority's certificate, in PEM");
        ServerTimeout "server-timeout" ServerUnreachable "The server did not respond in time.",
            hint: Some("the server may be busy; `ostler doctor` checks the connection");
        AnswerInterrupted "answer-interrupted" ServerUnreachable "The connection broke in the middle of a response.",
            hint: Some("the work may continue on the server; `ostler ps` shows it");
        AnswerSize "answer-size" PayloadTooLarge "The response is too large.",
            hint: Some("request fewer items at once");
        AnswerUnknown "answer-unknown" BackendFailed "The response is not one that this client understands.",
            hint: Some("check the address, and compare `ostler --version` with the server's");
        StreamClosed "stream-closed" InfraFailed "The server closed an event stream whose run or session goes on.";
        FrameSize "frame-size" PayloadTooLarge "An event of the stream is too large.";
        Address "address" SchemaInvalid "The text is not an address that may be requested.";
        AddressSize "address-size" SchemaInvalid "The address of the request is too long.";
        PathShape "path-shape" SchemaInvalid "The path does not begin with a slash, or contains spaces.",
            hint: Some("the path begins with a slash: /api/v1/runs");
        Method "method" SchemaInvalid "The text is not an HTTP method.",
            hint: Some("use GET, POST, PUT, PATCH or DELETE");
        TokenShape "token-shape" SchemaInvalid "The token has characters that are not printable.",
            hint: Some("a token is one word of printable ASCII");
        File "file" SchemaInvalid "The file cannot be read.",
            hint: Some("check the file's name and permissions");
        ApplyFile "apply-file" SchemaInvalid "A file of `ostler apply` cannot be applied as it is.",
            hint: Some("nothing was changed; correct what is named above, `ostler explain apply` lists the fields"),
            hints_by_kind: &[
                (FailureKind::Forbidden, "nothing was changed; `ostler can-i` shows what this token may do"),
                (FailureKind::StateConflict, "nothing was changed; resolve what is named above, and apply the files again"),
            ];
        Stdin "stdin" SchemaInvalid "The standard input cannot be read.";
    } };
}
