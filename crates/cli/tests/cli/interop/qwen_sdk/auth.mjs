// Credentials of providers, with the published SDK.

import assert from "node:assert/strict";

/** Credentials: by key, and by device flow. The provider issues a token at the first poll of the first flow. */
export async function auth({ newClient, session, following, step, has, isText, described, workspace }) {
  const client = newClient();
  const { sessionId, clientId } = await session(client);
  const follower = following(client, sessionId, { lastEventId: 0, clientId });
  const providerId = "example-id";
  await step("getAuthProviders", async () => {
    const catalog = await client.getAuthProviders();
    has(catalog, { v: 1, workspaceCwd: workspace }, "the catalog");
    assert.ok(catalog.providers.some(({ id }) => id === "deepseek"), `expected deepseek, got ${JSON.stringify(catalog.providers)}`);
    assert.deepEqual(catalog.groups.map(({ id }) => id), ["alibaba", "third-party", "custom"]);
  });
  await step("installAuthProvider", async () => {
    const installed = await client.installAuthProvider({ providerId: "deepseek", apiKey: "a-key-0123456789", modelIds: ["m"] });
    has(installed, { v: 1, providerId: "deepseek", authType: "model", modelId: "deepseek-m", baseUrl: "https://api.deepseek.com" }, "the result");
    assert.ok(!JSON.stringify(installed).includes("a-key"), "the key is not shown");
    const { state } = await client.sessionContext(sessionId, clientId);
    assert.ok(state.models.availableModels.some(({ modelId }) => modelId === "deepseek-m"), `expected the model, got ${JSON.stringify(state.models)}`);
  });
  await step("installAuthProvider of a private host is refused", async () => {
    const request = { providerId: "custom-openai-compatible", apiKey: "k", baseUrl: "https://10.0.0.1/v1", modelIds: ["m"] };
    await assert.rejects(client.installAuthProvider(request), (error) => {
      assert.equal(error.status, 400, `expected 400, got ${described(error)}`);
      has(error.body, { code: "invalid_base_url" }, "the failure");
      return true;
    });
  });
  const flow = await step("startDeviceFlow", async () => {
    const flow = await client.startDeviceFlow({ providerId, clientId });
    has(flow, { providerId, status: "pending", attached: false, initiatorClientId: clientId, intervalMs: 5000 }, "the flow");
    for (const name of ["deviceFlowId", "userCode", "verificationUri", "verificationUriComplete"]) isText(flow[name], name);
    has(await client.startDeviceFlow({ providerId, clientId }), { deviceFlowId: flow.deviceFlowId, attached: true }, "the same flow");
    return flow;
  });
  await step("getDeviceFlow", async () => {
    const own = await client.getDeviceFlow(flow.deviceFlowId, { clientId });
    has(own, { status: "pending", userCode: flow.userCode, initiatorClientId: clientId }, "the flow of its client");
    const other = await client.getDeviceFlow(flow.deviceFlowId);
    has(other, { status: "pending", userCode: undefined, verificationUri: undefined }, "the flow for another client");
  });
  await step("getAuthStatus", async () => {
    const status = await client.getAuthStatus({ clientId });
    has(status, { v: 1, workspaceCwd: workspace, supportedDeviceFlowProviders: [providerId] }, "the status");
    has(status.pendingDeviceFlows[0], { deviceFlowId: flow.deviceFlowId, providerId }, "the pending flow");
    assert.ok(!JSON.stringify(status).includes(flow.userCode), "the code is not shown");
  });
  await step("the flow is authorised", async () => {
    const authorized = await follower.first("auth_device_flow_authorized", ({ type }) => type === "auth_device_flow_authorized");
    has(authorized.data, { deviceFlowId: flow.deviceFlowId, providerId }, "the frame");
    has(await client.getDeviceFlow(flow.deviceFlowId, { clientId }), { status: "authorized" }, "the flow");
  });
  await step("cancelDeviceFlow", async () => {
    const second = await client.startDeviceFlow({ providerId, clientId });
    await client.cancelDeviceFlow(second.deviceFlowId, { clientId });
    await follower.first("auth_device_flow_cancelled", ({ type, data }) => type === "auth_device_flow_cancelled" && data.deviceFlowId === second.deviceFlowId);
    has(await client.getDeviceFlow(second.deviceFlowId, { clientId }), { status: "cancelled" }, "the flow");
    await client.cancelDeviceFlow(second.deviceFlowId, { clientId });
  });
  await step("an unknown provider is refused", async () => {
    await assert.rejects(client.startDeviceFlow({ providerId: "nobody", clientId }), (error) => {
      assert.equal(error.status, 400, `expected 400, got ${described(error)}`);
      has(error.body, { code: "unsupported_provider", supportedProviders: [providerId] }, "the failure");
      return true;
    });
  });
  await step("no frame holds a code or a token", async () => {
    const frames = JSON.stringify(follower.events);
    for (const secret of [flow.userCode, "pl4nted", "an-access-token"]) assert.ok(!frames.includes(secret), `${secret} is in a frame`);
  });
  await follower.stop();
}
