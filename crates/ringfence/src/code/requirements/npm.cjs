// npm starts no other program here: packages are unpacked, and nothing of theirs runs.
const programs = require('child_process');
for (const name of ['exec', 'execFile', 'execFileSync', 'execSync', 'fork', 'spawn', 'spawnSync']) {
  programs[name] = () => {
    throw Object.assign(new Error('the installer starts no other program'), { code: 'EPERM' });
  };
}
require('module').syncBuiltinESMExports();
