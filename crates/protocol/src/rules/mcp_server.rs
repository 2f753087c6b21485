//! Rules of the MCP server.

macro_rules! mcp_server_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        McpRevision "mcp-revision" SchemaInvalid "The MCP-Protocol-Version header names a revision that this server does not speak.",
            hint: Some("send the revision that initialize returned");
        McpSession "mcp-session" NotFound "The Mcp-Session-Id header names no session of this server, or one that was ended.",
            hint: Some("send initialize again, without the header");
        McpMessage "mcp-message" SchemaInvalid "The body is not a message of JSON-RPC 2.0.";
        McpBatch "mcp-batch" SchemaInvalid "The body is a batch that the revision does not have, or one of too many messages.",
            hint: Some("post one message at a time");
        McpMethod "mcp-method" MethodNotAllowed "The MCP server does not have this method.";
        McpParams "mcp-params" SchemaInvalid "The parameters of an MCP method do not have their shape.";
        McpTool "mcp-tool" SchemaInvalid "The MCP server does not have this tool.",
            hint: Some("tools/list names the tools");
        McpArguments "mcp-arguments" SchemaInvalid "The arguments of a tool do not match its schema.",
            hint: Some("tools/list has the schema of each tool");
        McpCursor "mcp-cursor" SchemaInvalid "The list has one page, or the cursor belongs to another list.";
        McpResource "mcp-resource" NotFound "The MCP server has no resource of this address.",
            hint: Some("resources/templates/list names the addresses");
        McpEventId "mcp-event-id" SchemaInvalid "The Last-Event-ID header is not the id of an event of the MCP server.",
            hint: Some("call the tool again");
        McpListen "mcp-listen" MethodNotAllowed "The MCP server sends nothing of its own accord, so there is no stream to listen to.",
            hint: Some("GET resumes a call with its Last-Event-ID; follow_run waits for events");
    } };
}
