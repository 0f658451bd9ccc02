//! JavaScript: Node, the web's own names, Deno, Bun, and what is often installed.

use std::sync::LazyLock;

use super::Effect::{self, *};
use super::{Apis, Codec};
use crate::rules::*;

pub static APIS: LazyLock<Apis> = LazyLock::new(|| Apis::new(&[PROCESSES, CODE, DECODERS, NETWORK, MACHINE, FILES]));

const PROCESSES: &[(Effect, &str)] = &[
    (Shell, "child_process.exec child_process.execSync shelljs.exec util.promisify().exec Bun.$ zx.$ cross-exec"),
    (Spawn, "child_process.spawn child_process.spawnSync child_process.execFile child_process.execFileSync child_process.fork Bun.spawn Bun.spawnSync Deno.run Deno.Command
        execa execa.* cross-spawn cross-spawn.* node-cmd.* child_process.ChildProcess"),
    // Handed on as a whole, it can no longer be followed.
    (Find(&SPAWN), "child_process"),
    (Find(&REMOTE_SHELL), "node-pty.spawn"),
    (Calls(&PROCESS), "process.kill cluster.fork process.abort"),
    (Calls(&PRIVILEGE), "process.setuid process.setgid process.seteuid process.setegid process.setgroups process.initgroups"),
];

const CODE: &[(Effect, &str)] = &[
    (Eval, "eval Function vm.runInThisContext vm.runInNewContext vm.runInContext vm.Script vm.compileFunction vm.SourceTextModule AsyncFunction GeneratorFunction worker_threads.Worker
        execScript vm2.VM().run isolated-vm.* require-from-string"),
    (Import, "require import module.require require.main.require process.mainModule.require process.getBuiltinModule module.createRequire() module.Module._load module._load
        module.Module.createRequire() importScripts Module._load module.constructor._load"),
    (Find(&ESCAPE), "process.binding process._linkedBinding process.mainModule process.mainModule.* module.constructor.* module.constructor"),
    (Calls(&PATCH), "module.Module.prototype.require.* module.Module._extensions.* require.cache.* require.extensions.* Module.prototype.require.*"),
    (Member, "Reflect.get Reflect.getOwnPropertyDescriptor Object.getOwnPropertyDescriptor"),
    (SetMember, "Reflect.set Object.defineProperty"),
    (Names, "Object.assign"),
    (Load, "v8.deserialize node-serialize.unserialize serialize-to-js.deserialize funcster.deepDeserialize cryo.parse js-yaml.loadUnsafe"),
];

const DECODERS: &[(Effect, &str)] = &[
    (Decode(Codec::Base64), "atob js-base64.decode Base64.decode"),
    (Decode(Codec::Percent), "unescape decodeURIComponent decodeURI querystring.unescape"),
    (Decode(Codec::Opaque), "zlib.gunzipSync zlib.inflateSync zlib.inflateRawSync zlib.unzipSync zlib.brotliDecompressSync zlib.gunzip zlib.inflate zlib.unzip pako.inflate pako.ungzip
        crypto.createDecipheriv().update crypto.createDecipheriv().final crypto.createDecipher().update crypto.privateDecrypt crypto.subtle.decrypt lz-string.decompress
        lz-string.decompressFromBase64 crypto-js.AES.decrypt CryptoJS.AES.decrypt"),
    (DecodeBy, "Buffer.from Buffer buffer.Buffer.from buffer.Buffer"),
    (Characters, "String.fromCharCode String.fromCodePoint Uint8Array Uint8Array.from Uint16Array.from TextDecoder().decode util.TextDecoder().decode"),
    (Same, "String Object url.fileURLToPath path.normalize Array.from Promise.resolve structuredClone util.promisify fs.realpathSync Object.freeze"),
    (Join, "path.join path.resolve path.posix.join URL url.resolve"),
    (Text("~"), "os.homedir"),
    (Text("."), "process.cwd"),
    (Text("/tmp"), "os.tmpdir"),
];

const NETWORK: &[(Effect, &str)] = &[
    (Connect, "fetch globalThis.fetch XMLHttpRequest().open WebSocket EventSource navigator.sendBeacon http.get http.request https.get https.request http2.connect
        net.connect net.createConnection net.Socket().connect tls.connect dgram.createSocket().send dgram.createSocket().connect dns.lookup dns.resolve dns.resolve4 dns.resolveTxt
        dns.promises.lookup dns.promises.resolve dns.promises.resolveTxt axios axios.get axios.post axios.put axios.patch axios.delete axios.request axios.create axios.create().*
        got got.get got.post got.put got.stream node-fetch superagent.get superagent.post superagent.put request request.get request.post undici.fetch undici.request
        undici.Client ws socket.io-client nodemailer.createTransport needle needle.get needle.post ky ky.get ky.post phin bent ssh2.Client().connect Deno.connect Bun.connect
        importScripts mongodb.MongoClient ioredis got.extend ftp.connect"),
    (Receive, "net.connect().on net.Socket().on net.createConnection().on WebSocket().on ws().on"),
    (Calls(&LISTEN), "net.createServer http.createServer https.createServer http2.createServer dgram.createSocket().bind express().listen ws.Server ws.WebSocketServer fastify().listen
        Bun.serve Deno.serve Deno.listen koa().listen"),
];

const MACHINE: &[(Effect, &str)] = &[
    (Find(&NATIVE), "process.dlopen WebAssembly.instantiate WebAssembly.compile WebAssembly.Module WebAssembly.instantiateStreaming ffi-napi.* ffi.* koffi.* ref-napi.* Deno.dlopen
        bun:ffi.* bindings node-gyp-build"),
    (Environment, "process.env Deno.env Bun.env import.meta.env"),
    (Variable, "Deno.env.get"),
    (Find(&ENV_ALL), "Deno.env.toObject process.report.getReport"),
    (Find(&CREDENTIAL), "keytar.getPassword keytar.findCredentials chrome-cookies-secure.* document.cookie"),
    (Find(&SPY), "iohook.on iohook.start node-global-key-listener.* screenshot-desktop clipboardy.read clipboardy.readSync uiohook-napi.*"),
];

const FILES: &[(Effect, &str)] = &[
    (Open, "fs.open fs.openSync fs.promises.open Deno.open"),
    (Read, "fs.readFile fs.readFileSync fs.createReadStream fs.readdir fs.readdirSync fs.readlink fs.readlinkSync fs.promises.readFile fs.promises.readdir fs.promises.readlink
        fs.opendir fs.opendirSync Deno.readTextFile Deno.readFile Deno.readTextFileSync Deno.readDir Bun.file fs-extra.readFile fs-extra.readFileSync fs-extra.readJson fs-extra.readJsonSync
        glob.sync glob.glob fast-glob.sync"),
    (Write, "fs.writeFile fs.writeFileSync fs.appendFile fs.appendFileSync fs.createWriteStream fs.mkdir fs.mkdirSync fs.chmod fs.chmodSync fs.chown fs.chownSync fs.truncate fs.truncateSync
        fs.promises.writeFile fs.promises.appendFile fs.promises.mkdir fs.promises.chmod Deno.writeTextFile Deno.writeFile Deno.writeTextFileSync Bun.write fs-extra.writeFile
        fs-extra.outputFile fs-extra.outputFileSync fs-extra.writeFileSync"),
    (Remove, "fs.unlink fs.unlinkSync fs.rmdir fs.rmdirSync fs.promises.unlink fs.promises.rmdir Deno.remove"),
    (RemoveTree, "fs.rm fs.rmSync fs.promises.rm fs-extra.remove fs-extra.removeSync fs-extra.emptyDir fs-extra.emptyDirSync rimraf rimraf.sync rimraf.rimraf del"),
    (Enter, "process.chdir"),
    (Copy, "fs.copyFile fs.copyFileSync fs.rename fs.renameSync fs.symlink fs.symlinkSync fs.link fs.linkSync fs.cp fs.cpSync fs.promises.copyFile fs.promises.rename fs.promises.symlink
        fs-extra.copy fs-extra.copySync fs-extra.move"),
];
