"""Logs more than there is room for, while the server does not read."""

import everbeat

app = everbeat.App()


@app.task
def chat(ctx: everbeat.Context, lines: int):
    for number in range(lines):
        ctx.log.info("%d %s", number, "x" * 8000)
