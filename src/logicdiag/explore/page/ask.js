// How the page asks the server.

const token = new URLSearchParams(location.search).get("token") ?? "";

// What the server refused, in its own sentence.
export class Refused extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.ofRules = status === 422;
  }
}

export async function ask(path, body, headers = {}) {
  const raw = body instanceof Blob;
  const options = body === undefined ? {} : { method: "POST", body: raw ? body : JSON.stringify(body) };
  const kind = body === undefined || raw ? {} : { "Content-Type": "application/json" };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { "X-Token": token, ...kind, ...headers } });
  } catch {
    throw new Refused("the server does not answer; is logicdiag explore still running?");
  }
  if (!answer.ok) throw new Refused((await answer.json()).error, answer.status);
  return answer.headers.get("Content-Type").startsWith("image/") ? answer.blob() : answer.json();
}

// One question on its way; of those that come meanwhile the newest alone is asked. `work` gets a function that says
// whether a newer one waits, and the question.
export function newestOnly(work) {
  let waiting = null, busy = false;
  return async (...question) => {
    waiting = question;
    if (busy) return;
    busy = true;
    try {
      while (waiting) {
        const next = waiting;
        waiting = null;
        await work(() => waiting !== null, ...next);
      }
    } finally {
      busy = false;
    }
  };
}
