#!/bin/sh
# An agent in a POSIX shell: curl asks the policy, sed reads its answers, the shell calculates.
# Of agentrl it knows three variables and that its task is JSON on standard input. It prints its answer.
set -eu

TOOLS='[{"type": "function", "function": {"name": "calculate", "description": "Evaluate an arithmetic expression of whole numbers.", "parameters": {"additionalProperties": false, "properties": {"expression": {"description": "Digits, + - * and brackets, for example 12*(3+4).", "type": "string"}}, "required": ["expression"], "type": "object"}}}]'

chat() { # chat MESSAGES: the policy's answer; the key stays out of curl's arguments, which any process can see
    printf 'header = "Authorization: Bearer %s"\n' "$OPENAI_API_KEY" |
        curl --silent --show-error --fail-with-body --max-time 120 --config - \
            --header 'Content-Type: application/json' --data-binary \
            "{\"model\": \"$AGENTRL_MODEL\", \"messages\": [$1], \"tools\": $TOOLS}" "$OPENAI_BASE_URL/chat/completions"
}

calculate() { # calculate EXPRESSION: only of digits and operators, so that the shell can be trusted with it
    case $1 in
        '' | *[!'0123456789+*() -']*) echo 'Error: only digits, + - * and brackets are allowed' ;;
        *) (echo $(($1))) 2>/dev/null || echo 'Error: that is no expression' ;;
    esac
}

question=$(sed -n 's/.*"question":"\([^"]*\)".*/\1/p')
messages="{\"role\": \"user\", \"content\": \"$question\"}"

for _ in 1 2 3 4; do
    answer=$(chat "$messages")
    call=$(printf '%s' "$answer" | sed -n 's/.*"tool_calls":\[\({.*"}}\)\].*/\1/p')
    if [ -z "$call" ]; then
        printf '%s' "$answer" | sed -n 's/.*"content":"\([^"]*\)".*/\1/p'
        exit
    fi
    id=$(printf '%s' "$call" | sed -n 's/.*"id":"\([^"]*\)".*/\1/p')
    expression=$(printf '%s' "$call" | sed -n 's/.*\\"expression\\": *\\"\([^"\\]*\)\\".*/\1/p')
    result=$(calculate "$expression")
    messages="$messages, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [$call]}"
    messages="$messages, {\"role\": \"tool\", \"tool_call_id\": \"$id\", \"content\": \"$result\"}"
done
