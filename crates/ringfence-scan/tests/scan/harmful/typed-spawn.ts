import { spawnSync as launch } from "node:child_process";

interface Job { command: string; args: string[] }

export function start(job: Job): number | null {
  return launch(job.command, job.args, { shell: true }).status;
}
