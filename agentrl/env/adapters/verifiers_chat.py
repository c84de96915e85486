"""A verifiers harness that is a chat loop in this process: no program to install, no container, every call recorded.

Imported by `agentrl.env.adapters.verifiers` only: it needs the package.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace

from agentrl.env.tool import ToolError, error_text, json_object

__all__ = ["ChatHarness"]

CONNECT_TIMEOUT_S = 60.0
"""For the tool servers of a task to say what they offer."""


class ChatHarness(Harness[HarnessConfig]):
    """Asks the model, answers its tool calls, and ends with the first message that has none.

    Each model call goes to verifiers' interception, which counts turns, ends the exchange and passes requests on
    unchanged. What is wrong with a tool call goes to the model.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        servers = {
            "mcpServers": {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        }
        headers = {"Authorization": f"Bearer {secret}"}
        async with AsyncExitStack() as stack:
            tools, homes, connections = await asyncio.wait_for(connect_mcp(servers, stack), CONNECT_TIMEOUT_S)
            hidden = self.config.disabled_tools or []
            tools = [tool for tool in tools if tool["function"]["name"] not in hidden]
            timeout = aiohttp.ClientTimeout(total=None)  # verifiers bounds the rollout, and the gateway each call
            http = await stack.enter_async_context(aiohttp.ClientSession(headers=headers, timeout=timeout))
            while True:
                body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
                async with http.post(f"{endpoint}/chat/completions", json=body) as response:
                    if response.status >= 400:  # an error, or the exchange is over; verifiers knows which
                        return ProgramResult(exit_code=1, stdout="", stderr=(await response.text())[-2000:])
                    message = (await response.json())["choices"][0]["message"]
                messages.append(message)
                calls = message.get("tool_calls") or []
                if not calls:
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                offered = {tool["function"]["name"] for tool in tools}
                for call in calls:
                    content = await _answer(call, offered, homes, connections)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def _answer(call: dict[str, Any], offered: set[str], homes: Any, connections: Any) -> Any:
    name = call["function"]["name"]
    try:
        if name not in offered:
            raise ToolError(f"unknown tool {name!r}")
        content = await call_mcp(connections, homes, name, json_object(call["function"]["arguments"]))
    except Exception as error:
        return error_text(error)
    return content if isinstance(content, str | list) else json.dumps(content)
