// Makes keys, encrypts and decrypts with the published implementation of age.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [library, request] = process.argv.slice(2);
const age = await import(pathToFileURL(library).href);
const { verb, from, to, key, identity, recipient } = JSON.parse(request);

const firstLine = (file) => readFileSync(file, "utf8").split("\n")[0];
const secretKey = (file) => readFileSync(file, "utf8").split("\n").find((line) => line.startsWith("AGE-SECRET-KEY-"));

if (verb === "keygen") {
  const secret = await age.generateIdentity();
  const known = await age.identityToRecipient(secret);
  writeFileSync(identity, `# created for a test\n# public key: ${known}\n${secret}\n`);
  writeFileSync(recipient, known);
} else if (verb === "decrypt") {
  const decrypter = new age.Decrypter();
  if (key.identity) decrypter.addIdentity(secretKey(key.identity));
  else decrypter.addPassphrase(firstLine(key.passphrase));
  writeFileSync(to, await decrypter.decrypt(readFileSync(from), "uint8array"));
} else {
  const encrypter = new age.Encrypter();
  if (key.identity) encrypter.addRecipient(await age.identityToRecipient(secretKey(key.identity)));
  else {
    encrypter.setPassphrase(firstLine(key.passphrase));
    // Seconds in JavaScript with the factor for people; any factor is restored.
    encrypter.setScryptWorkFactor(12);
  }
  writeFileSync(to, await encrypter.encrypt(readFileSync(from)));
}
