//! Rules of run input. Those in capitals are codes of its wire; interrupts are what it calls permission requests.

macro_rules! run_input_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        AgentSessionIdInvalid "AGENT_SESSION_ID_INVALID" SchemaInvalid "The thread id is not a UUID.",
            run_input_code: Some("AGENT_SESSION_ID_INVALID");
        AgentInvalidRunId "AGENT_INVALID_RUN_ID" SchemaInvalid "The run id is empty, too long or not printable, or the thread has no such run.",
            run_input_code: Some("AGENT_INVALID_RUN_ID");
        AgentRunInputInvalid "AGENT_RUN_INPUT_INVALID" SchemaInvalid "The input does not match its schema.",
            run_input_code: Some("AGENT_RUN_INPUT_INVALID"),
            hint: Some("docs/run-input.md has the rules of the input");
        AgentRunMessagesInvalid "AGENT_RUN_MESSAGES_INVALID" SchemaInvalid "The messages of the input break one of their rules.",
            run_input_code: Some("AGENT_RUN_MESSAGES_INVALID");
        AgentRuntimeModeInvalid "AGENT_RUNTIME_MODE_INVALID" SchemaInvalid "The runtime mode of the input is not `chat`.",
            run_input_code: Some("AGENT_RUNTIME_MODE_INVALID");
        AgentPayloadInvalid "AGENT_PAYLOAD_INVALID" PayloadTooLarge "The input is too large.",
            run_input_code: Some("AGENT_PAYLOAD_INVALID");
        AgentInvalidLastEventId "AGENT_INVALID_LAST_EVENT_ID" SchemaInvalid "The Last-Event-ID header is not the id of an event.",
            run_input_code: Some("AGENT_INVALID_LAST_EVENT_ID");
        AgentAttachmentInvalid "AGENT_ATTACHMENT_INVALID" SchemaInvalid "A message refers to an attachment that cannot be used.",
            run_input_code: Some("AGENT_ATTACHMENT_INVALID");

        InterruptsOpen "interrupts-open" RunInputInvalid "The thread has open interrupts, and the input does not answer all of them.",
            run_input_code: Some("AGENT_RUN_INPUT_INVALID"), is_of_interrupts: true;
        InterruptUnknown "interrupt-unknown" RunInputInvalid "The thread has no such interrupt.",
            run_input_code: Some("AGENT_RUN_INPUT_INVALID"), is_of_interrupts: true;
        InterruptTwice "interrupt-twice" RunInputInvalid "An interrupt is answered twice.",
            run_input_code: Some("AGENT_RUN_INPUT_INVALID"), is_of_interrupts: true;
        InterruptAnswer "interrupt-answer" RunInputInvalid "An answer cannot be read, or its interrupt does not offer it.",
            run_input_code: Some("AGENT_RUN_INPUT_INVALID"), is_of_interrupts: true;
        InterruptResolved "interrupt-resolved" RunInputInvalid "The interrupt was answered before, with another answer.",
            run_input_code: Some("AGENT_RUN_INPUT_INVALID"), is_of_interrupts: true;
        InterruptExpired "interrupt-expired" RunInputInvalid "The interrupt has expired and can only be cancelled.",
            run_input_code: Some("AGENT_RUN_INPUT_INVALID"), is_of_interrupts: true;

        IdleLimit "idle-limit" SchemaInvalid "The idle limit of the stream is out of range.";
        Before "before" SchemaInvalid "The day to read history before is not a date.";
        FormField "form-field" SchemaInvalid "A field of the form is missing, unknown or given twice.";
        FormMalformed "form-malformed" SchemaInvalid "The body is not a complete form.";
        AttachmentSize "attachment-size" PayloadTooLarge "The attachment is too large.",
            hint: Some("use a smaller picture; docs/limits.md has the limits");
        AttachmentType "attachment-type" UnsupportedMediaType "The attachment is not a picture of a supported type.",
            hint: Some("use a PNG, JPEG, GIF or WebP picture");
        AttachmentQuota "attachment-quota" RateLimited "The user has too many attachments.";
        AttachmentUrl "attachment-url" Forbidden "The URL of the attachment has expired or was not signed by this server.",
            hint: Some("read the thread again: it has a new URL");
        AttachmentStore "attachment-store" InfraFailed "The store of attachments failed.";
    } };
}
