const path = "./build/Release/hook.node";
process.dlopen(module, path);
