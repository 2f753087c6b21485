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
        AgentRuntimeModeInvalid "AGENT_RUNTIME_MODE_INVALID" SchemaInvalid "The runtime mode of the input is unknown, or it is `automation` in a thread that no automation of the user has started.",
            run_input_code: Some("AGENT_RUNTIME_MODE_INVALID");
        AgentPayloadInvalid "AGENT_PAYLOAD_INVALID" PayloadTooLarge "The input is too large.",
            run_input_code: Some("AGENT_PAYLOAD_INVALID");
        AgentInvalidLastEventId "AGENT_INVALID_LAST_EVENT_ID" SchemaInvalid "The Last-Event-ID header is not the id of an event.",
            run_input_code: Some("AGENT_INVALID_LAST_EVENT_ID");
        AgentAttachmentInvalid "AGENT_ATTACHMENT_INVALID" SchemaInvalid "A message refers to an attachment that cannot be used.",
            run_input_code: Some("AGENT_ATTACHMENT_INVALID");
        AgentAudioUnsupportedFormat "AGENT_AUDIO_UNSUPPORTED_FORMAT" SchemaInvalid "The recording is not a WAV file.",
            run_input_code: Some("AGENT_AUDIO_UNSUPPORTED_FORMAT");
        AgentAudioTooLarge "AGENT_AUDIO_TOO_LARGE" SchemaInvalid "The recording is too large.",
            run_input_code: Some("AGENT_AUDIO_TOO_LARGE");
        AgentAudioEmpty "AGENT_AUDIO_EMPTY" SchemaInvalid "The recording has no sound in it.",
            run_input_code: Some("AGENT_AUDIO_EMPTY");
        AgentAsrUnavailable "AGENT_ASR_UNAVAILABLE" BackendFailed "The speech endpoint is not configured, cannot be reached or failed.",
            run_input_code: Some("AGENT_ASR_UNAVAILABLE"),
            hint: Some("`transcription.base_url` in the config names the endpoint");

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

        AutomationShape "automation-shape" SchemaInvalid "A field of the automation breaks its rule.";
        AutomationSchedule "automation-schedule" SchemaInvalid "The schedule of the automation is not complete, or contradicts itself.",
            hint: Some("docs/automations.md describes schedules");
        AutomationTools "automation-tools" SchemaInvalid "The automation names tools that its runs are not offered.",
            hint: Some("`ostler tools list` lists the tools; those of MCP servers must be named in system_agents.enabled_tools");
        AutomationUnknown "automation-unknown" NotFound "The user has no such automation.",
            run_input_code: Some("AUTOMATION_NOT_FOUND"), hint: Some("`ostler automations list` lists them");
        CalendarEventUnknown "calendar-event-unknown" NotFound "The user's calendar has no such event.",
            run_input_code: Some("CALENDAR_EVENT_NOT_FOUND"), hint: Some("`ostler calendar list` lists what takes place");
        AutomationQuota "automation-quota" RateLimited "The user has too many automations.",
            hint: Some("delete one with `ostler automations delete`");
        CalendarShape "calendar-shape" SchemaInvalid "A field of the calendar event breaks its rule.";
        CalendarTime "calendar-time" SchemaInvalid "A time of the calendar event is no local time, or its end is not after its start.";
        CalendarRule "calendar-rule" SchemaInvalid "The recurrence rule cannot be read, or the event does not start with its first occurrence.",
            hint: Some("docs/automations.md lists the parts of a rule that can be used");
        CalendarWindow "calendar-window" SchemaInvalid "The window of the list is empty or too long.";
        CalendarQuota "calendar-quota" RateLimited "The user has too many calendar events.",
            hint: Some("delete old events");
    } };
}
