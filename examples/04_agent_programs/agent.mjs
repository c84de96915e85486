// An agent in Node, without a package. Of agentrl it knows three variables and that its task is JSON on standard input.
import { readFileSync } from "node:fs";

const { OPENAI_BASE_URL, OPENAI_API_KEY, AGENTRL_MODEL } = process.env;

const tools = [
  {
    type: "function",
    function: {
      name: "calculate",
      description: "Evaluate an arithmetic expression of whole numbers.",
      parameters: {
        additionalProperties: false,
        properties: {
          expression: { description: "Digits, + - * and brackets, for example 12*(3+4).", type: "string" },
        },
        required: ["expression"],
        type: "object",
      },
    },
  },
];

function calculate(args) {
  try {
    const { expression } = JSON.parse(args);
    if (!/^[0-9+\-*() ]+$/.test(expression)) throw new Error("only digits, + - * and brackets are allowed");
    return String(Function(`return ${expression}`)());
  } catch (error) {
    return `Error: ${error.message}`;
  }
}

async function chat(messages) {
  const response = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: AGENTRL_MODEL, messages, tools }),
  });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  return (await response.json()).choices[0].message;
}

const { options } = JSON.parse(readFileSync(0, "utf8"));
const messages = [{ role: "user", content: options.question }];
for (let turn = 0; turn < 4; turn++) {
  const message = await chat(messages);
  messages.push(message);
  if (!message.tool_calls) {
    console.log(message.content);
    break;
  }
  for (const call of message.tool_calls)
    messages.push({ role: "tool", tool_call_id: call.id, content: calculate(call.function.arguments) });
}
