//! Rules of the client and the command line: addresses, the connection, and what a server responds.

macro_rules! client_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        ServerAddress "server-address" SchemaInvalid "The text is not the address of a server.",
            hint: Some("name the server as http://HOST:PORT, with `--server` or in its context");
        ServerUnreachable "server-unreachable" InfraFailed "The server cannot be reached.";
        ServerTimeout "server-timeout" InfraFailed "The server did not respond in time.";
        AnswerInterrupted "answer-interrupted" InfraFailed "The connection broke in the middle of a response.";
        AnswerSize "answer-size" PayloadTooLarge "The response is too large.";
        AnswerUnknown "answer-unknown" BackendFailed "The response is not one that this client understands.";
        FrameSize "frame-size" PayloadTooLarge "An event of the stream is too large.";
        Address "address" SchemaInvalid "The text is not an address that may be requested.";
        AddressSize "address-size" SchemaInvalid "The address of the request is too long.";
        PathShape "path-shape" SchemaInvalid "The path does not begin with a slash, or contains spaces.";
        Method "method" SchemaInvalid "The text is not an HTTP method.";
        TokenShape "token-shape" SchemaInvalid "The token has characters that are not printable.";
        File "file" SchemaInvalid "The file cannot be read.";
        Stdin "stdin" SchemaInvalid "The standard input cannot be read.";
    } };
}
