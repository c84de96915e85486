// A reward service to start from, in another language: `node examples/07_reward_services/service.mjs 9100`
import { createServer } from "node:http";

const ROOM = 100; // characters
const LIMIT = 64 * 2 ** 20; // bytes of a request

function judged(item) {
  // null is missing, and its episode is not trained; 0 would be a bad answer
  if (!item.text) return { reward: null, error: "there is no answer to judge" };
  const characters = [...item.text].length;
  return { reward: Math.max(0, 1 - characters / ROOM), components: { characters } };
}

async function read(request) {
  const parts = [];
  let size = 0;
  for await (const part of request) {
    if ((size += part.length) > LIMIT) throw new Error("the body is too large");
    parts.push(part);
  }
  return JSON.parse(Buffer.concat(parts));
}

const server = createServer(async (request, response) => {
  const answer = (status, body) => {
    response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
  };
  if (request.url === "/health") return answer(200, { status: "ok" });
  if (request.url !== "/score" || request.method !== "POST") return answer(404, { error: "POST /score" });
  try {
    const { items } = await read(request); // an id that comes again has to get the same score again
    answer(200, { results: items.map((item) => ({ id: item.id, ...judged(item) })) });
  } catch (error) {
    answer(400, { error: String(error) }); // 5xx would be tried again
  }
});
server.keepAliveTimeout = 75_000; // above the client's, so that no request meets a closing connection
server.listen(Number(process.argv[2] ?? 9100), "127.0.0.1", () => console.log(server.address().port));
