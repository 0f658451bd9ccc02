source = ")'di'(metsys.so ;so tropmi"
exec(source[::-1])
