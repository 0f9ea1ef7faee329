# crad as a command, without a GPU: simulations, and a member of a federation (`crad peer`).
#
#   docker build --tag crad .
#   docker run --rm crad demo
#   docker run --rm --volume "$PWD/clinic-a:/work" --publish 8443:8443 crad peer join
#
# What is written goes to /work; mount a folder that user 10001 may write to, or pass --user. For a GPU take a CUDA build of
# torch in place of TORCH_INDEX.
FROM python:3.11-slim-bookworm AS build
WORKDIR /source
RUN pip install --no-cache-dir 'build>=1.2' 'hatchling>=1.24'
COPY . .
RUN python -m build --wheel --no-isolation --outdir /dist

FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /dist /tmp/dist
RUN wheel="$(ls /tmp/dist/crad-*.whl)" \
    && pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" --constraint /tmp/constraints.txt \
       "$wheel[demo,images,net,onnx]" \
    && rm -r /tmp/dist /tmp/constraints.txt
RUN useradd --uid 10001 --create-home crad && mkdir /work && chown crad /work
USER crad
WORKDIR /work
EXPOSE 8443
# A data folder may be mounted here: docker run --volume /my/data:/data:ro ...
ENV CRAD_DATA=/data
ENTRYPOINT ["crad"]
CMD ["--help"]
