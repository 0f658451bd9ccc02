import ctypes, mmap

code = b"\x48\x31\xc0\xc3"
area = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
area.write(code)
kind = ctypes.CFUNCTYPE(ctypes.c_int)
kind(ctypes.addressof(ctypes.c_int.from_buffer(area)))()
