//! Python: the standard library, and what is often installed.

use std::sync::LazyLock;

use super::Effect::{self, *};
use super::{Apis, Codec};
use crate::rules::*;

pub static APIS: LazyLock<Apis> =
    LazyLock::new(|| Apis::new(&[PROCESSES, CODE, DECODERS, NETWORK, DATA, MACHINE, FILES]));

const PROCESSES: &[(Effect, &str)] = &[
    (Shell, "os.system os.popen posix.system nt.system subprocess.getoutput subprocess.getstatusoutput commands.getoutput asyncio.create_subprocess_shell popen2.popen2"),
    (Spawn, "subprocess.run subprocess.Popen subprocess.call subprocess.check_call subprocess.check_output _posixsubprocess.fork_exec
        os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe os.startfile
        os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe os.posix_spawn os.posix_spawnp
        asyncio.create_subprocess_exec pexpect.spawn pexpect.run plumbum.local sh.* invoke.run fabric.*"),
    (Find(&REMOTE_SHELL), "pty.spawn"),
    (Find(&PROCESS), "os.fork os.forkpty pty.fork os.kill os.killpg os.abort"),
    (Find(&PRIVILEGE), "os.setuid os.setgid os.seteuid os.setegid os.setreuid os.setresuid os.setgroups os.chroot os.unshare os.setns"),
    (Duplicate, "os.dup2 os.dup"),
];

const CODE: &[(Effect, &str)] = &[
    (Eval, "builtins.eval builtins.exec builtins.compile builtins.execfile code.InteractiveInterpreter().runsource code.InteractiveInterpreter().runcode pandas.eval timeit.timeit timeit.repeat timeit.Timer
        cProfile.run cProfile.runctx cProfile.Profile().run profile.run profile.runctx profile.Profile().run pdb.run pdb.runeval pdb.Pdb().run bdb.Bdb().run trace.Trace().run"),
    (Calls(&DYNAMIC), "runpy.run_path runpy.run_module types.FunctionType types.CodeType types.LambdaType code.interact code.InteractiveConsole"),
    (Import, "builtins.__import__ importlib.import_module importlib.__import__ importlib.reload pydoc.locate pkgutil.resolve_name"),
    (Calls(&IMPORT), "importlib.util.spec_from_file_location importlib.util.module_from_spec importlib.machinery.SourceFileLoader importlib.machinery.ExtensionFileLoader
        importlib.machinery.SourcelessFileLoader imp.load_source imp.load_module zipimport.zipimporter pkgutil.get_loader"),
    (Member, "builtins.getattr inspect.getattr_static object.__getattribute__ builtins.object.__getattribute__"),
    (Same, "operator.attrgetter operator.methodcaller"),
    (Getter, "operator.attrgetter()"),
    (Caller, "operator.methodcaller()"),
    (Later, "threading.Thread threading.Timer multiprocessing.Process multiprocessing.context.Process _thread.start_new_thread"),
    (Partial, "functools.partial"),
    (SetMember, "builtins.setattr builtins.delattr"),
    (Names, "builtins.globals builtins.locals builtins.vars builtins.dir"),
    (Find(&ESCAPE), "gc.get_objects gc.get_referrers sys._current_frames ctypes.pythonapi"),
    (Calls(&REFLECTION), "sys._getframe inspect.currentframe"),
    (Calls(&PATCH), "sys.settrace sys.setprofile threading.settrace sys.addaudithook sys.meta_path.insert sys.meta_path.append sys.path_hooks.append sys.path_hooks.insert"),
    (Calls(&INSTALL), "pip.main pip._internal.main pip._internal.cli.main.main ensurepip.bootstrap micropip.install"),
];

const DECODERS: &[(Effect, &str)] = &[
    (Decode(Codec::Base64), "base64.b64decode base64.standard_b64decode base64.urlsafe_b64decode base64.decodebytes base64.decodestring binascii.a2b_base64"),
    (Decode(Codec::Hex), "base64.b16decode binascii.unhexlify binascii.a2b_hex builtins.bytes.fromhex builtins.bytearray.fromhex"),
    (Decode(Codec::Percent), "urllib.parse.unquote urllib.parse.unquote_plus urllib.unquote"),
    (Decode(Codec::Opaque), "base64.b32decode base64.b85decode base64.a85decode base64.z85decode binascii.a2b_uu zlib.decompress gzip.decompress bz2.decompress lzma.decompress
        zlib.decompressobj() cryptography.fernet.Fernet().decrypt Crypto.Cipher.AES.new().decrypt Crypto.Cipher.ARC4.new().decrypt Cryptodome.Cipher.AES.new().decrypt
        nacl.secret.SecretBox().decrypt rsa.decrypt"),
    (DecodeBy, "codecs.decode"),
    (Characters, "builtins.chr builtins.bytes builtins.bytearray array.array struct.pack"),
    (Same, "builtins.str builtins.memoryview html.unescape textwrap.dedent os.fspath os.path.expanduser os.path.expandvars os.path.abspath os.path.realpath os.path.normpath
        inspect.cleandoc io.BytesIO io.StringIO sys.intern shlex.split shlex.quote builtins.iter builtins.list builtins.tuple builtins.sorted builtins.next builtins.reversed"),
    (Join, "os.path.join posixpath.join pathlib.Path pathlib.PurePath pathlib.PosixPath urllib.parse.urljoin"),
    (Text("~"), "pathlib.Path.home"),
    (Text("."), "pathlib.Path.cwd os.getcwd"),
];

const NETWORK: &[(Effect, &str)] = &[
    (Connect, "requests.get requests.post requests.put requests.patch requests.delete requests.head requests.options requests.request requests.Session().* requests.session().*
        httpx.get httpx.post httpx.put httpx.patch httpx.delete httpx.head httpx.request httpx.stream httpx.Client httpx.AsyncClient httpx.Client().* httpx.AsyncClient().*
        urllib.request.urlopen urllib.request.urlretrieve urllib.request.Request urllib.request.build_opener().open urllib.urlopen urllib.urlretrieve urllib2.urlopen
        urllib3.PoolManager().request urllib3.PoolManager().urlopen urllib3.request aiohttp.ClientSession().* aiohttp.request
        http.client.HTTPConnection http.client.HTTPSConnection smtplib.SMTP smtplib.SMTP_SSL ftplib.FTP ftplib.FTP_TLS telnetlib.Telnet poplib.POP3 imaplib.IMAP4 imaplib.IMAP4_SSL
        paramiko.SSHClient().connect paramiko.Transport websocket.create_connection websocket.WebSocketApp websockets.connect asyncio.open_connection asyncio.open_unix_connection
        socket.create_connection socket.getaddrinfo socket.gethostbyname socket.gethostbyaddr dns.resolver.resolve dns.resolver.query dns.resolver.Resolver().resolve
        xmlrpc.client.ServerProxy boto3.client boto3.resource boto3.Session pycurl.Curl wget.download webbrowser.open redis.Redis pymongo.MongoClient psycopg2.connect
        socket.socket().connect socket.socket().connect_ex socket.socket().sendto socket.socket().connect_ex() nntplib.NNTP"),
    (Socket, "socket.socket socket.socketpair socket.fromfd"),
    (Receive, "socket.socket().recv socket.socket().recvfrom socket.socket().makefile socket.create_connection().recv socket.socket().accept"),
    (Calls(&LISTEN), "socket.socket().bind socket.socket().listen socket.create_server socketserver.TCPServer socketserver.UDPServer socketserver.ThreadingTCPServer
        http.server.HTTPServer http.server.ThreadingHTTPServer asyncio.start_server asyncio.start_unix_server wsgiref.simple_server.make_server flask.Flask().run uvicorn.run
        aiohttp.web.run_app xmlrpc.server.SimpleXMLRPCServer"),
];

const DATA: &[(Effect, &str)] = &[
    (Load, "pickle.load pickle.loads pickle.Unpickler cPickle.load cPickle.loads _pickle.loads dill.load dill.loads cloudpickle.load cloudpickle.loads joblib.load shelve.open
        marshal.load marshal.loads yaml.unsafe_load yaml.full_load yaml.load_all jsonpickle.decode pandas.read_pickle sklearn.externals.joblib.load keras.models.load_model
        builtins.bytes.__reduce__ xml.sax.make_parser"),
    (LoadUnlessSafe, "yaml.load torch.load numpy.load"),
];

const MACHINE: &[(Effect, &str)] = &[
    (Find(&NATIVE), "ctypes.CDLL ctypes.cdll ctypes.cdll.* ctypes.PyDLL ctypes.WinDLL ctypes.windll ctypes.windll.* ctypes.CFUNCTYPE ctypes.memmove ctypes.memset ctypes.string_at
        ctypes.cast ctypes.util.find_library ctypes._dlopen cffi.FFI _ctypes.dlopen _ctypes.call_function numpy.ctypeslib.load_library sys.setdlopenflags"),
    (Find(&NATIVE_MEMORY), "mmap.PROT_EXEC os.memfd_create ctypes.CDLL().mprotect ctypes.CDLL().memfd_create ctypes.CDLL().ptrace ctypes.CDLL().mmap ctypes.CDLL().process_vm_writev
        ctypes.cdll.LoadLibrary().mprotect ctypes.windll.kernel32.VirtualAlloc ctypes.windll.kernel32.CreateRemoteThread ctypes.windll.kernel32.WriteProcessMemory
        ctypes.pythonapi.mprotect"),
    (Environment, "os.environ os.environb posix.environ"),
    (SetVariable, "os.putenv posix.putenv os.environ.update os.environ.__setitem__"),
    (Variable, "os.getenv os.getenvb os.environ.get os.environ.pop os.environ.setdefault os.environ.__getitem__"),
    (Find(&CREDENTIAL), "keyring.get_password keyring.get_credential browser_cookie3.* browsercookie.* spwd.getspnam spwd.getspall win32crypt.CryptUnprotectData secretstorage.* netrc.netrc"),
    (Find(&SPY), "pynput.keyboard.Listener pynput.mouse.Listener keyboard.on_press keyboard.on_release keyboard.hook keyboard.record pyxhook.HookManager PIL.ImageGrab.grab mss.mss
        pyautogui.screenshot pyperclip.paste cv2.VideoCapture sounddevice.rec pyaudio.PyAudio"),
];

const FILES: &[(Effect, &str)] = &[
    (Open, "builtins.open io.open codecs.open os.open pathlib.Path().open gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile sqlite3.connect io.FileIO mmap.mmap"),
    (Read, "os.listdir os.scandir os.walk os.readlink glob.glob glob.iglob linecache.getline linecache.getlines fileinput.input pathlib.Path().read_text pathlib.Path().read_bytes
        pathlib.Path().iterdir pathlib.Path().glob pathlib.Path().rglob pandas.read_csv pandas.read_json pandas.read_excel numpy.loadtxt numpy.fromfile configparser.ConfigParser().read
        PIL.Image.open shutil.make_archive os.fwalk"),
    (Write, "os.makedirs os.mkdir os.chmod os.chown os.lchown os.truncate os.mkfifo os.mknod os.utime pathlib.Path().write_text pathlib.Path().write_bytes pathlib.Path().mkdir
        pathlib.Path().touch pathlib.Path().chmod pathlib.Path().symlink_to pathlib.Path().rename"),
    (Remove, "os.remove os.unlink os.rmdir os.removedirs pathlib.Path().unlink pathlib.Path().rmdir"),
    (RemoveTree, "shutil.rmtree"),
    (Enter, "os.chdir contextlib.chdir"),
    (Copy, "shutil.copy shutil.copy2 shutil.copyfile shutil.copytree shutil.move os.rename os.replace os.link os.symlink"),
];
