#!/usr/bin/env bash
# test_init.sh: --init reads what Hugging Face's libraries write: in one piece or in
# shards, fp32, fp16 and bf16, names with and without `transformer.`, with tensors we do not use.
. "$(dirname "$0")/lib.sh"

# rewritten FROM TO TYPE PREFIX SHARDS: the checkpoint FROM as a folder TO of that kind; 0 shards:
# one model.safetensors. The tensors are dealt out to the shards in turn.
rewritten() {
    command -v python3 >/dev/null || skip "no python3; install python3"
    python3 - "$@" <<'PY'
import json, os, shutil, struct, sys
source, target, kind, prefix, shards = sys.argv[1:5] + [int(sys.argv[5])]
os.makedirs(target)
shutil.copy(source + "/config.json", target)
data = open(source + "/model.safetensors", "rb").read()
start = 8 + struct.unpack_from("<Q", data)[0]
header = json.loads(data[8:start])
header.pop("__metadata__")
def narrow(values):         # to nearest, ties to even
    if kind == "F32": return values
    floats = struct.unpack(f"<{len(values) // 4}f", values)
    if kind == "F16": return struct.pack(f"<{len(floats)}e", *floats)
    bits = struct.unpack(f"<{len(floats)}I", values)
    return struct.pack(f"<{len(bits)}H", *(b + 0x7fff + (b >> 16 & 1) >> 16 for b in bits))
tensors = {"h.0.attn.bias": ("U8", [1, 1, 8, 8], bytes(64))}        # in files of GPT-2 as published
for name, t in header.items():
    begin, end = (start + i for i in t["data_offsets"])
    name = prefix + name.removeprefix("transformer.")
    tensors[name] = (kind, t["shape"], narrow(data[begin:end]))
names = sorted(tensors)
parts = max(shards, 1)
files = [f"model-{i + 1:05}-of-{parts:05}.safetensors" for i in range(parts)]
for i, file in enumerate(files):
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name in names[i::parts]:
        dtype, shape, values = tensors[name]
        span = [len(body), len(body) + len(values)]
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=span)
        body += values
    text = json.dumps(header).encode()
    with open(f"{target}/{file if shards else 'model.safetensors'}", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
if shards:
    with open(target + "/model.safetensors.index.json", "w") as f:
        json.dump(dict(metadata=dict(total_size=1), weight_map={n: files[i % parts]
                       for i, n in enumerate(names)}), f, indent=2)
PY
}
loss_of() { gpt --eval --val t.txt --init "$1" --seq_len 8 --out none; field val_loss stdout; }
model() { text 20 >t.txt; gpt $tiny --train t.txt --steps 9 --lr 0.1 --warmup_steps 1 --out run; }

test_init_reads_every_type_and_both_kinds_of_names() {
    local type prefix want got
    model
    want=$(loss_of run/step_00000009)
    for type in F32 F16 BF16; do
        for prefix in transformer. ''; do
            rewritten run/step_00000009 "$type$prefix" $type "$prefix" 0
            got=$(loss_of "$type$prefix")
            case $type in
            F32) [ "$got" = "$want" ] ;;
            *)   awk -v a="$got" -v b="$want" 'BEGIN { d = a - b; exit !(d && d * d < 1e-5) }' ;;
            esac || fail "$type $prefix: loss $got, as saved $want"
        done
    done
}
test_init_from_shards_is_init_from_one_file() {
    local type prefix shards
    model
    for type in F32 F16 BF16; do
        rewritten run/step_00000009 one$type $type '' 0
        for shards in 2 3; do
            prefix=$([ $shards = 2 ] || echo transformer.)
            rm -rf sharded
            rewritten run/step_00000009 sharded $type "$prefix" $shards
            [ "$(loss_of sharded)" = "$(loss_of one$type)" ] || fail "$type, $shards shards"
        done
    done
    rm -r sharded
    rewritten run/step_00000009 sharded F32 '' 2
    [ "$(loss_of sharded/model.safetensors.index.json)" = "$(loss_of oneF32)" ]
    gpt $tiny --train t.txt --steps 1 --val_every 0 --init sharded --out a
    gpt $tiny --train t.txt --steps 1 --val_every 0 --init oneF32 --out b
    cmp {a,b}/step_00000001/model.safetensors
    cp oneF32/model.safetensors sharded     # where both are, the one file counts
    rm sharded/model-*
    [ "$(loss_of sharded)" = "$(loss_of oneF32)" ]
}

run_tests "$@"
