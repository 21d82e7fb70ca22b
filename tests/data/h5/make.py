"""Makes the files in this folder, which the HDF5 library of the tests cannot write.

This script needs h5py, built with szip. The files are committed, so that no test needs h5py.
"""

import h5py
import numpy as np

x = np.sin(np.arange(1000) * 0.01) * 1e3

with h5py.File("szip.h5", "w", libver="earliest") as f:
    f.create_dataset("szip", data=x, chunks=(100,), compression="szip")
    f.create_dataset("szip shuffled", data=x, chunks=(100,), compression="szip", shuffle=True)
    f.create_dataset("plain", data=x)

with h5py.File("lzf.h5", "w", libver="earliest") as f:
    f.create_dataset("lzf", data=x, chunks=(100,), compression="lzf")
    f.create_dataset("lzf shuffled", data=x, chunks=(100,), compression="lzf", shuffle=True, fletcher32=True)

# Less common element types, as h5py writes them.
with h5py.File("types.h5", "w", libver="earliest") as f:
    f["f16"] = np.arange(9, dtype="f2")
    f["bool"] = np.arange(9) % 2 == 0
    f["complex"] = np.arange(9) * (1 + 2j)
    f["long double"] = np.arange(9, dtype="g")
    f["text"] = "variable length"
    f["reference"] = f["f16"].ref
    f["region"] = f["f16"].regionref[2:4]
    f["record"] = np.zeros(9, dtype=[("a", "f8"), ("b", "i4", (2, 2)), ("c", [("d", "u1"), ("e", ">f4")])])

# A file in the newest format of HDF5 2.
with h5py.File("hdf5-2.h5", "w", libver="latest") as f:
    f["contiguous"] = x[:100]
    f.create_dataset("chunked", data=x, chunks=(100,), maxshape=(None,), compression="gzip")
    f.create_group("g", track_order=True)["y"] = x[:10]

# The structure of a netCDF-4 file: dimension scales, tracked and indexed order, hidden attributes.
with h5py.File("netcdf4.nc", "w", libver=("v108", "v110"), track_order=True) as f:
    f.attrs["_NCProperties"] = np.bytes_("version=2,netcdf=4.9.2,hdf5=1.14.3")
    for nth, (name, n) in enumerate([("time", 4), ("lat", 6), ("lon", 8)]):
        f[name] = np.arange(n, dtype="f8")
        f[name].make_scale(name)
        f[name].attrs["_Netcdf4Dimid"] = np.int32(nth)
    t = f.create_dataset("temperature", data=(x[:192] / 7).astype("f4").reshape(4, 6, 8), chunks=(1, 6, 8),
                         maxshape=(None, 6, 8), compression="gzip", compression_opts=4, shuffle=True, fillvalue=9.96921e36)
    for nth, name in enumerate(["time", "lat", "lon"]):
        t.dims[nth].attach_scale(f[name])
    g = f.create_group("forecast", track_order=True)
    g["pressure"] = x[:48].reshape(6, 8)

# A netCDF-3 file in the classic format, written byte by byte: one dimension, one variable of doubles.
def name(text):
    return len(text).to_bytes(4, "big") + text + b"\0" * (-len(text) % 4)

number = lambda n: n.to_bytes(4, "big")
head = b"CDF\x01" + number(0)
head += number(10) + number(1) + name(b"x") + number(100)
head += number(0) + number(0)
head += number(11) + number(1) + name(b"v") + number(1) + number(0) + number(0) + number(0) + number(6) + number(800)
head += number(len(head) + 4)
with open("netcdf3.nc", "wb") as f:
    f.write(head + x[:100].astype(">f8").tobytes())
