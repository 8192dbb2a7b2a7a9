import everbeat

app = everbeat.App()


@app.flow("copy", every="15m", overlap="sometimes", configuration={"table": "t"})
def copy(ctx, table): ...


@app.task(schedule=everbeat.Schedule(every="1h"))
def report(ctx): ...
