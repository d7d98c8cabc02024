#!/usr/bin/env python3
"""cu2host.py FILE.cu OUT_DIR [flags]: rewrite a CUDA source into C++ that g++ and clang++ accept.

CUDA C++ is C++ plus a few spellings that no macro can catch. This pass edits exactly those, as
text, and leaves everything else alone: no parser, no knowledge of types. Line numbers do not change
and each output begins with #line, so compilers, debuggers and sanitizers name the .cu.

  k<T><<<grid, block>>>(x)       EMU_LAUNCH(EMU_NAME(k<T>), ([=](auto... a) { k<T>(a...); }), ..)(x)
  extern __shared__ T buf[];     T* buf = (T*)emu::shared_dynamic("buf", alignof(T));
  __shared__ T a[N], b[N][M];    auto& a = emu::shared_var<T[N]>("a", alignof(T), []{}); and b too
  __launch_bounds__(128) ... {   ... { emu::launch_bounds(128);   the kernel checks its block size
  NULL                           nullptr: NULL would turn into a long among the auto... arguments
  __noinline__                   __attribute__((noinline)): a macro would break libstdc++
  #include "x.cuh"               the rewritten copy of x.cuh, beside its includer or by -I
  asm with PTX, <mma.h>, ...     an error with a clear text, if the preprocessor lets it live

Why a lambda: the launch may run later (streams), and k may be an overloaded name or a template, so
only a call can pick it. Why [=]: a local function pointer used as kernel must outlive the launch.
Why the empty lambda []{}: it is a new type at every declaration and in every template instance, so
it keys the variable. Prints the path of the rewritten file; an error is one line FILE:LINE: ..."""
import os
import re
import sys

# Included headers that need hardware or libraries we do not emulate. #error speaks only where the
# preprocessor reaches it, so a program may keep them in the #else of #ifdef EMULATED.
NO_HEADER = re.compile(r'[ \t]*#[ \t]*include[ \t]*<((?:mma\.h|cuda/(?!std/)|cub/|thrust/|cutlass/'
                       r'|cute/|cuda_pipeline|cooperative_groups/(?!reduce)|curand|cudnn|cufft'
                       r'|cusparse|cusolver)[^>]*)>[^\n]*')
NO_ASM = ('inline PTX (asm) is not emulated: keep it in the #else of #ifdef EMULATED '
          'and call emu:: functions there, see dev/emu/README.md')
PTX = re.compile(r'"[^"]*[a-z]\.[a-z]')                       # mma.sync; the host's asm has no dots
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
NOT_CODE = re.compile(r'//[^\n]*|R"([^\s()\\]*)\(.*?\)\1"|'
                      r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', re.S)
KERNEL_NAME = re.compile(r'(?:::)?[A-Za-z_]\w*(?:(?:::|\.|->)[A-Za-z_]\w*|\[[^][;]*\])*'   # ns::k
                         r'(?:\s*<[^<>;{}]*(?:<[^<>;{}]*>[^<>;{}]*)*>)?\s*$')   # k<args>, x.k[i]
ALIGN = re.compile(r'(?:alignas|__align__)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)')


class Source:
    """One file: its text, the text with comments and strings blanked, and the edits to make."""

    def __init__(self, path):
        self.path = path
        with open(path, encoding='utf-8', errors='surrogateescape') as f:
            self.text = f.read()
        # same length and lines as the text, so positions in one are positions in the other
        self.code = NOT_CODE.sub(lambda m: re.sub(r'[^\n]', ' ', m.group()), self.text)
        self.edits = []                                        # (start, end, replacement)

    def die(self, pos, what):
        sys.exit(f'{self.path}:{self.code.count(chr(10), 0, pos) + 1}: error: {what}')

    def edit(self, start, end, new):
        """Replace text[start:end], keeping its number of lines."""
        lost = self.text.count('\n', start, end) - new.count('\n')
        self.edits.append((start, end, new + '\n' * max(lost, 0)))

    def closing(self, i):
        """Index of the bracket that closes the one at i."""
        depth = 0
        for j in range(i, len(self.code)):
            depth += (self.code[j] in '([{') - (self.code[j] in ')]}')
            if depth == 0:
                return j
        self.die(i, 'this bracket is never closed')

    def result(self):
        out, at = [f'#line 1 "{self.path}"\n'], 0
        for start, end, new in sorted(self.edits):
            out += [self.text[at:start], new]
            at = end
        return ''.join(out) + self.text[at:]


def split_commas(text):
    """Split at the commas outside of all brackets, <> included."""
    parts, depth = [''], 0
    for c in text:
        depth += (c in '([{<') - (c in ')]}>')
        if c == ',' and depth == 0:
            parts.append('')
        else:
            parts[-1] += c
    return parts


def rewrite_launches(s):
    for m in re.finditer('<<<', s.code):
        name = KERNEL_NAME.search(s.code, max(0, m.start() - 500), m.start())
        if not name:
            s.die(m.start(), 'a launch must be written NAME<<<...>>>(...)')
        depth, i = 0, m.end()
        while not (depth == 0 and s.code.startswith('>>>', i)):
            depth += (s.code[i:i + 1] in tuple('([{')) - (s.code[i:i + 1] in tuple(')]}'))
            if depth < 0 or i >= len(s.code) or s.code[i] == ';':
                s.die(m.start(), 'cannot find the >>> that ends this <<<')
            i += 1
        if not re.match(r'>>>\s*\(', s.code[i:i + 100]):
            s.die(i, 'a launch must be written NAME<<<...>>>(...)')
        k = ' '.join(name.group().split())
        call = f'[=](auto... emu_a) {{ {k}(emu_a...); }}'
        if re.search(r'\.|->|\[', k):                   # a pointer in a variable: read it now
            call = f'[emu_k = {k}](auto... emu_a) {{ emu_k(emu_a...); }}'
        s.edit(name.start(), m.end(), f'EMU_LAUNCH(EMU_NAME({k}), ({call}), ')
        s.edit(i, i + 3, ')')


def rewrite_shared(s):
    for m in re.finditer(r'\b__shared__\b', s.code):
        start = max(s.code.rfind(c, 0, m.start()) for c in ';{}') + 1     # of the declaration
        hash_line = s.code.rfind('\n', 0, m.start()) + 1
        if s.code[hash_line:].lstrip().startswith('#'):
            s.die(m.start(), '__shared__ inside a macro: declare it in the kernel')
        start += re.match(r'(?:\s*#[^\n]*)*\s*', s.code[start:m.start()]).end()
        end = s.code.find(';', m.end())
        decl = s.code[start:end]
        if '=' in decl or '{' in decl:
            s.die(m.start(), 'a __shared__ variable has no initialiser; declare its type before')
        align = ALIGN.search(decl)
        is_extern = re.search(r'\bextern\b', decl)
        decl = re.sub(r'\b(?:extern|static|__shared__)\b', ' ', ALIGN.sub(' ', decl))
        first, *more = split_commas(decl)
        d = re.fullmatch(r'\s*(.*?[\s*&>])([A-Za-z_]\w*\s*(?:\[.*\]\s*)?)', first, re.S)
        type_ = ' '.join(d.group(1).split()) if d else ''
        al = align.group(1) if align else f'alignof({type_})'
        new = []
        for text in [d.group(2) if d else ''] + more:
            v = re.fullmatch(r'\s*([A-Za-z_]\w*)\s*((?:\[.*\])?)\s*', text, re.S)
            if not v:
                s.die(m.start(), 'cannot read this declaration: write one variable in it')
            name, dims = v.group(1), ' '.join(v.group(2).split())
            if is_extern:
                new.append(f'{type_}* {name} = ({type_}*)::emu::shared_dynamic("{name}", {al});')
            else:
                var = f'::emu::shared_var<{type_}{dims}>("{name}", {al}, []{{}})'
                new.append(f'auto& {name} = {var};')
        s.edit(start, end + 1, ' '.join(new))


def rewrite_launch_bounds(s):
    for m in re.finditer(r'\b__launch_bounds__\s*\(', s.code):
        end = s.closing(m.end() - 1)
        params = s.code.find('(', end + 1)
        if params < 0:
            continue
        body = s.closing(params) + 1
        brace = re.compile(r'\s*\{').match(s.code, body)                  # none: only declared here
        if brace:
            s.edit(brace.end(), brace.end(), f' ::emu::launch_bounds({s.code[m.end():end]});')


def rewrite_words(s):
    for m in re.finditer(r'\bNULL\b', s.code):
        line = s.code[s.code.rfind('\n', 0, m.start()) + 1:m.start()]
        if not re.fullmatch(r'\s*#\s*(?:ifdef|ifndef|undef|define)\s+', line):
            s.edit(m.start(), m.end(), 'nullptr')
    for m in re.finditer(r'(?<!\()\b__noinline__\b', s.code):
        s.edit(m.start(), m.end(), '__attribute__((noinline))')
    for m in re.finditer(r'\b(?:asm|__asm__|__asm)\b', s.code):
        if PTX.search(s.text, m.end(), s.code.find(';', m.end())):
            s.edit(m.start(), m.end(), f'static_assert(false, "{NO_ASM}"); {m.group()}')
    for m in NO_HEADER.finditer(s.code):
        s.edit(m.start(), m.end(), f'#error "<{m.group(1)}> is not emulated"')


def rewrite_includes(s, out_dir, folders, done):
    for m in INCLUDE.finditer(s.text):
        if s.code[m.start():m.end()].strip() == '':
            continue                                                      # inside a comment
        for folder in [os.path.dirname(s.path)] + folders:
            path = os.path.normpath(os.path.join(folder, m.group(1)))
            if os.path.isfile(path):
                s.edit(m.start(1), m.end(1), rewrite(path, out_dir, folders, done))
                break


def rewrite(path, out_dir, folders, done):
    """Rewrite one file and what it includes; the path of the result. One copy per file keeps
    #pragma once working."""
    real = os.path.realpath(path)
    if real not in done:
        done[real] = os.path.join(out_dir, f'{len(done)}_{os.path.basename(path)}')
        s = Source(path)
        rewrite_launches(s)
        rewrite_shared(s)
        rewrite_launch_bounds(s)
        rewrite_words(s)
        rewrite_includes(s, out_dir, folders, done)
        with open(done[real], 'w', encoding='utf-8', errors='surrogateescape') as f:
            f.write(s.result())
    return done[real]


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit('usage: cu2host.py FILE.cu OUT_DIR [flags]')
    path, out, *flags = sys.argv[1:]
    dirs = [os.path.dirname(path)] + [flag[2:] for flag in flags if flag.startswith('-I') and
                                      not os.path.isfile(flag[2:] + '/cuda_runtime.h')]
    try:
        print(rewrite(path, os.path.abspath(out), dirs, {}))
    except OSError as e:
        sys.exit(f'{e.filename}: error: {e.strerror}')
