// The public methods of the published SDK: each is called by `calls.mjs`, or listed here with the reason why not.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";

const words = (text) => text.trim().split(/\s+/);

/** Methods that are not called, by the class and the reason. */
const uncalled = {
  DaemonClient: {
    "of the SDK itself: no request, or the request of another method": words("brand dispose requireCapability workspaceById workspaceByCwd waitForExtensionOperation runtimeStopOptions"),
    "later than the capabilities page: sessions": words(`
      archiveSessionsData cancelSubagentSession continueSession createSessionGroup createSideTaskSession deleteSessionGroup
      deleteSessionsData detachSession enqueueMidTurnMessage exportSession forkSession generateSessionContent getMidTurnMessages
      getPendingPrompts getSessionTranscriptPage getSessionTurnIndexPage getWorkspaceSessionLiveState listSessionGroups
      listWorkspaceSessionsPage removeMidTurnMessage removePendingPrompt resetWorktreeSession resolveSubagentSession
      searchWorkspaceSessions sessionAgentTrace sessionAgents sessionGoal sessionGoalClear sessionGoalControl sessionResources
      sessionSavedWorkflow sessionStatus sessionWorkflowTaskAction sessionWorkflowTasks setSessionConfigOption setUserLanguage
      unarchiveSessionsData updateSessionGroup updateSessionOrganization`),
    "later than the capabilities page: sources, attachments and artifacts of sessions": words(`
      addSessionArtifact listSessionArtifacts listSessionAttachments listSessionSources readSessionArtifactContent
      readSessionAttachment removeSessionArtifact removeSessionAttachment removeSessionSource uploadSessionAttachment
      upsertSessionSource`),
    "later than the capabilities page: sessions without a workspace": words(`
      archiveStandaloneSessions createStandaloneSession deleteStandaloneSessions exportStandaloneSession getStandaloneSession
      getStandaloneSessionOptions listStandaloneSessions listStandaloneSessionsPage loadStandaloneSession renameStandaloneSession
      repairStandaloneSessionDirectory resumeStandaloneSession unarchiveStandaloneSessions`),
    "later than the capabilities page: the daemon and its workspaces": words(`
      addScratchWorkspace addWorkspace daemonStatus ensureWorkspaceRuntime notify setupGithub updateWorkspace usageDashboard
      workspaceAcpPreheat workspaceAcpStatus workspaceRuntimeStatus`),
    "later than the capabilities page: files, version control, permissions and memory of a workspace": words(`
      addWorkspacePermissionRule dreamWorkspaceMemory forgetWorkspaceMemory generateWorkspaceContent
      getWorkspaceMemoryDreamTask getWorkspaceMemoryForgetTask getWorkspaceMemoryRememberTask rememberWorkspaceMemory
      removeWorkspacePermissionRule requestWorkspaceTrustChange setWorkspacePermissionRules uploadWorkspaceFile
      workspaceDirectoryPicker workspaceGit workspaceGitBranches workspaceGitCheckout workspaceGitCommit
      workspaceGitCommitDetail workspaceGitCreateBranch workspaceGitDiff workspaceGitDiffFile workspaceGitLog workspaceGitPull
      workspaceGitPush workspacePathSuggestions workspacePermissions workspaceTools workspaceTrust`),
    "later than the capabilities page: tools, skills, extensions and models": words(`
      activeExtensionOperations checkUserExtensionUpdates deleteModel deleteWorkspaceConfigSkill deleteWorkspaceSkill
      extensionCatalog extensionOperation initializeWorkspaceMcp installExtensionArchive installUserExtension
      installWorkspaceConfigSkill installWorkspaceSkill modelConfigurations reloadWorkspaceMcp removeUserMcpServer
      respondToExtensionInteraction setExtensionDefaultActivation setExtensionDefaultActivations setUserMcpServer
      setUserMcpServerEnabled setWorkspaceSkillEnabled setWorkspaceSkillsEnabled uninstallUserExtension
      updateModelContextWindow updateUserExtension workspaceConfigSkills workspaceMcpResources workspaceRuntimeSkills`),
    "later than the capabilities page: voice, live sessions and channels": words(`
      approveWorkspaceChannelPairing deleteWorkspaceChannel getChannelWorkerControl launchLiveHost liveSetupStatus liveStatus
      reloadChannelWorker restartWorkspaceChannel retryLiveHostInstall revokeWorkspaceChannelPairingApproval
      setChannelWorkerSelection setLiveMute setLiveShortcut setWorkspaceChannelStartup setWorkspaceVoice startLive
      startWorkspaceChannel stopChannelWorker stopLive stopWorkspaceChannel transcribeWorkspaceVoice updateLiveSetup
      upsertWorkspaceChannel workspaceChannelPairingApprovals workspaceChannelPairingRequests workspaceChannelTypes
      workspaceChannels workspaceVoice`),
  },
  DaemonSessionClient: {
    "of the SDK itself: no request": words("consumeReplaySnapshot setLastEventId"),
    "later than the capabilities page": words(`
      addArtifact agentTrace agents artifacts clearGoal continueSession controlGoal controlWorkflowTask createStandalone detach
      enqueueMidTurnMessage fork generateContent getMidTurnMessages getPendingPrompts getTranscriptPage getTurnIndexPage goal
      listAttachments listSources loadStandalone readAttachment removeArtifact removeAttachment removeMidTurnMessage
      removePendingPrompt removeSource resetWorktree resources resumeStandalone savedWorkflow setConfigOption status
      uploadAttachment upsertSource workflowTasks`),
  },
};

/** The names of the static and other methods of a class that its declaration does not mark as private or internal. */
function publicMethods(type, declaration) {
  const marked = [/private (?:readonly |get )?(\w+)/g, /@internal(?:(?!\*\/)[\s\S])*\*\/\s*(\w+)/g];
  const hidden = new Set(marked.flatMap((mark) => [...declaration.matchAll(mark)].map(([, name]) => name)));
  const methods = (object) => Object.getOwnPropertyNames(object).filter((name) => typeof Object.getOwnPropertyDescriptor(object, name).value === "function");
  return [...methods(type.prototype), ...methods(type)].filter((name) => name !== "constructor" && name !== "prototype" && !hidden.has(name));
}

/** Records which public methods of a client, or of a class, are called from outside. */
export function recording(object, called) {
  return new Proxy(object, {
    get(target, name) {
      const member = target[name];
      if (typeof member !== "function" || name === "prototype") return member;
      return (...parameters) => {
        called.add(name);
        return member.apply(target, parameters);
      };
    },
  });
}

/** What is wrong with the methods that were called and those that are listed above. */
export function methodProblems(sdk, sdkPath, called) {
  const problems = [];
  for (const [name, reasons] of Object.entries(uncalled)) {
    const declaration = readFileSync(join(dirname(sdkPath), `${name}.d.ts`), "utf8");
    const methods = publicMethods(sdk[name], declaration);
    assert.ok(methods.length > 50, `expected the methods of ${name}, found ${methods}`);
    const listed = Object.values(reasons).flat();
    for (const method of methods) {
      if (!called[name].has(method) && !listed.includes(method)) problems.push(`${name}.${method} is neither called nor listed`);
    }
    for (const method of listed) {
      if (!methods.includes(method)) problems.push(`${name}.${method} is listed, but the SDK has no such method`);
      if (called[name].has(method)) problems.push(`${name}.${method} is listed as not called, but is called`);
    }
  }
  return problems;
}
