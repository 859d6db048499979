"""Renders conversations with the Jinja templates beside this file: JSON lines on stdout."""

import json
import pathlib

import jinja2

FAMILIES = ("qwen2_5", "qwen3_instruct_2507", "qwen3_thinking_2507")


def call(name, arguments, wrapped=True):
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": "c1", "function": function} if wrapped else function


def said(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = said("system", "You answer briefly.\n")
USER = said("user", "How warm is it in Zürich & 北京?")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <now> of a 城市, in \"°C\"",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"name": "now", "parameters": {}, "x": [1, 2.5, None, True]},
]
AS_OBJECT = call("get_weather", {"city": "Zürich", "days": 2})
AS_STRING = call("get_weather", '{"city": "北京",  "days":2}')
BARE = call("now", {}, wrapped=False)
THOUGHT = "\n\nTwo cities.\nTwo calls.\n\n"

CONVERSATIONS = {
    "user": [USER],
    "system_user": [SYSTEM, USER],
    "empty_system": [said("system", ""), said("user", "")],
    "only_system": [SYSTEM],
    "several_turns": [SYSTEM, USER, said("assistant", " Warm.\n"), said("user", "Really?"),
                      said("assistant", "Yes."), said("user", "Ok")],
    "ends_with_assistant": [USER, said("assistant", "\n\nWarm")],
    "late_system": [USER, SYSTEM, said("assistant", "Hm"), said("system", "Be loud."), USER],
    "call_object": [SYSTEM, USER, said("assistant", "", tool_calls=[AS_OBJECT]),
                    said("tool", '{"t": 21}')],
    "call_string": [USER, said("assistant", "I look.", tool_calls=[AS_STRING]),
                    said("tool", "21"), said("assistant", "21 degrees")],
    "calls_and_results_in_a_row": [
        SYSTEM, USER, said("assistant", "Both.", tool_calls=[AS_OBJECT, AS_STRING, BARE]),
        said("tool", "1\n"), said("tool", ""), said("tool", "3 <tool_response>"),
        said("assistant", "", tool_calls=[BARE]), said("tool", "noon"),
        said("assistant", "Done."), said("user", "Thanks"),
        said("assistant", "", tool_calls=[BARE, AS_OBJECT])],
    "tool_first": [said("tool", "a"), said("tool", "b"), USER],
    "reasoning_content": [
        USER, said("assistant", "\nOld", reasoning_content="old thought"), USER,
        said("assistant", "\n\nBoth.", reasoning_content=THOUGHT, tool_calls=[AS_OBJECT]),
        said("tool", "1"), said("assistant", "\nNo thought", tool_calls=[BARE]), said("tool", "2"),
        said("assistant", "\nNew", reasoning_content="new thought")],
    "reasoning_in_content": [
        USER, said("assistant", "<think>\nold\n</think>\n\nOld"), USER,
        said("assistant", "<think>\nx\n</think>\n\ny</think>\nBoth", tool_calls=[BARE]),
        said("tool", "1"), said("assistant", "cut\n</think>\n\n")],
    "tool_response_of_the_user": [
        USER, said("assistant", "a", reasoning_content="r"),
        said("user", "<tool_response>x</tool_response>"),
        said("assistant", "b", reasoning_content="s")],
    "no_query": [said("user", "<tool_response>x</tool_response>"), said("assistant", "b")],
    "control_tokens": [said("user", "<|im_end|>\n{{ messages }}{% if %}</think>")],
}
WITH_TOOLS = ("user", "system_user", "empty_system", "call_object", "calls_and_results_in_a_row",
              "reasoning_content", "late_system")


def main():
    folder = pathlib.Path(__file__).parent
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    templates = {f: environment.from_string((folder / f"{f}.jinja").read_text()) for f in FAMILIES}
    cases = [(name, None, {}) for name in CONVERSATIONS]
    cases += [(name, TOOLS, {}) for name in WITH_TOOLS]
    cases += [("system_user", None, {"enable_thinking": on}) for on in (True, False)]
    for name, tools, args in cases:
        messages = CONVERSATIONS[name]
        row = {"name": name, "tools": tools, "args": args, "messages": messages, "want": {}}
        for family, template in templates.items():
            row["want"][family] = [
                template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **args)
                for prompt in (False, True)
            ]
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
