"""The task of Everbeat's workers."""

import everbeat

app = everbeat.App()


@app.task
def nothing(ctx):
    return None
